"""A good file of each kind, which is damaged for the fuzz: it has every key that a reader may meet."""

import json
import struct

from edge_agent.planning import SCHEMA
from tests.conftest import ROOT

SESSION_ID = "0123456789abcdef" * 2
EDGE = """
[model]
factory = "shared.model.zoo:mlp"
kwargs = { hidden = 16 }
[data.train]
factory = "edge_agent.data:digits"
[deployment]
cut = 1
staleness = [[0, 1], [2, 3]]
[training.optimizer]
learning_rate = 5e-2
"""
PLACED = """
[[trainers]]
name = "near"
address = "127.0.0.1:1"
[[trainers]]
name = "far"
address = "127.0.0.1:2"
[placement]
edge = ["0:2", "6:"]
near = "2:4"
far = "4:6"
labels = "edge"
[privacy]
inputs_to = ["near"]
"""
PLACEMENT = {
    "schema": "isthmus.placement/v1",
    "workers": ["edge", "near", "far"],
    "tiles": [
        {"worker": "edge", "blocks": [0, 2], "samples": [0, 3]},
        {"worker": "near", "blocks": [0, 2], "samples": [3, 8]},
        {"worker": "far", "blocks": [2, 4]},
    ],
    "sources": [{"worker": "edge", "samples": [0, 8]}],
    "labels": ["far"],
    "owners": {"0": "near", "1": "far"},
    "staleness": 2,
    "codecs": [{"from": "edge", "to": "far", "cargo": "feature", "codec": "uniform8"}],
}
TRAINER = """
[server]
listen = "127.0.0.1:50051"
max_sessions = 8
session_idle_seconds = 1800.0
[models]
allowed = ["shared.model.zoo"]
"""
PROFILE = {
    "schema": SCHEMA,
    "model": "small",
    "batch_size": 8,
    "blocks": [{"name": "a", "bytes": 1e6, "parameter_bytes": 5e5}, {"name": "b", "bytes": 2e6}],
    "feature_bytes": [None, 4e6, 2e6],
    "gradient_bytes": [None, 4e6, 2e6],
    "workers": [
        {
            "name": "edge",
            "replayed": [[0, 1, 1.0], [0, 2, 2.0]],
            "serial": [[0, 1, 0.5]],
            "message": {"seconds": 0.5, "seconds_per_byte": 1e-9, "waited_seconds": 0.25},
        },
        {"name": "trainer", "replayed": [[1, 2, 0.5]]},
    ],
    "links": [{"between": ["edge", "trainer"], "uplink": 1e6, "downlink": 1e7, "round_trip_seconds": 0.1}],
    "encode": [0.125, 1e-7],
    "min_bits": [32, 8, 4],
    "max_staleness": 3,
    "remarks": {"device": "Pi 4", "spread": [1, None]},
}
TIERS = json.loads((ROOT / "edge_agent" / "demo" / "tiers.json").read_text())
LAYERS = json.loads((ROOT / "edge_agent" / "demo" / "layers.json").read_text())
PARTS = {
    "settings": {"kind": "pair"},
    "seconds": {"edge": {"0:1 on 32": [[0.5, 1.0, 0.0]], "0:2 on 32": []}},
    "links": {"edge-near": {"uplink": 8e6, "downlink": 8e6, "round_trip_seconds": 0.01}},
    "segments": [[0]],
    "steps": {"edge alone": 0.5},
}
_LANES = [
    {"phase": "edge", "of": "edge", "by_reports": False},
    {"phase": "uplink", "of": "edge>near", "by_reports": False},
    {"phase": "cloud", "of": "near", "by_reports": True},
    {"phase": "link", "of": "near>far", "by_reports": False},
]
TIMELINE = {
    "traceEvents": [
        *(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": "a lane", **lane}}
            for number, lane in enumerate(_LANES)
        ),
        *(
            {
                "ph": "X",
                "name": f"{what} {step}",
                "cat": module,
                "pid": 1,
                "tid": begin,
                "ts": 10.0 * step + begin,
                "dur": 2.0,
                "args": {"step": step},
            }
            for step in range(3)
            for begin, (module, what) in enumerate([("edge", "forward"), ("uplink", "feature"), ("cloud", "step")])
        ),
        {"ph": "C", "name": "near>far", "cat": "link", "pid": 1, "tid": 3, "ts": 1.0, "args": {"bits_per_second": 8e6}},
    ]
}
RECORD = {
    "session_id": SESSION_ID,
    "config": {"model": {"factory": "shared.model.zoo:mlp"}},
    "samples": 100,
    "schedule_steps": 10,
    "start_digest": None,
    "trainer": "127.0.0.1:50051",
    "model": "m",
    "total_steps": 10,
    "began": "2026-01-01",
    "shared": [1, 7],
}
MAHIMAHI = b"1\n5\n5\n130\n400\n"
GHENT = b"1453122797863 0 51.03 3.7 20000 1000\n1453122798863 1000 51.03 3.7 30000 1000\n"
CSV = b"second,bytes per second\n0,1000\n1,2500.5\n3,0\n"
LISTS_5G = b"Run 1\n1.5,2.5,3\nRun 2\n0.1,0.2\n5,6\n0.1,0.2\n7,8\n"
STEPS = b"applied 0 aa\napplied 1 bb\nback 1\napplied 1 bb\napplied 2 cc\npassed 3 9\n"
IMAGES = struct.pack(">4B3I", 0, 0, 8, 3, 2, 2, 2) + bytes(8)
