"""Makes s2.json: S2 leaf cell ids by an implementation that shares no code with the one that geofold uses.

    pip install s2sphere==0.2.5
    python3 tests/vectors/s2.py > tests/vectors/s2.json

s2sphere is a port of the C++ library to Python. Run once, on 2026-11-21.
"""

import json
import math

import s2sphere

CORNER = math.degrees(math.atan(1 / math.sqrt(2)))


def groups():
    yield "face centre", [(0, 0), (0, 90), (90, 0), (0, 180), (0, -90), (-90, 0)]
    yield "pole", [(lat, lon) for lat in (90, -90) for lon in (-180, -135.5, -45, 0.001, 77, 180)]
    yield "antimeridian", [(lat, lon) for lat in (-89.9, -60, -45, -0.5, 0, 12.25, 45, 80) for lon in (180, -180)]
    yield "edge of the cube", [(lat, lon) for lat in (-30, -10.5, 0, 5, 35) for lon in (-135, -45, 45, 135)]
    # On the very corner the last bit of a sine decides, and implementations differ: these are a tenth of a millimetre beside it.
    yield "corner of the cube", [
        (sign * (CORNER + shift), lon) for sign in (1, -1) for lon in (-135, -45, 45, 135) for shift in (-1e-9, 1e-9)
    ]
    yield "edge of a quarter", [(0, 1e-9), (0, -1e-9), (1e-9, 0), (-1e-9, 0), (45, 0), (-45, 90), (45, 180), (-0.0, -0.0)]
    yield "city", [
        (52.5163, 13.3777), (48.8584, 2.2945), (51.5007, -0.1246), (40.6892, -74.0445), (35.6586, 139.7454),
        (-33.8568, 151.2153), (-22.9519, -43.2105), (30.0444, 31.2357), (19.0760, 72.8777), (64.1466, -21.9426),
        (-54.8019, -68.3030), (-17.7134, 178.0650), (37.7749, -122.4194), (1.3521, 103.8198), (-1.2921, 36.8219),
        (78.2232, 15.6267), (-77.8419, 166.6863), (21.3069, -157.8583), (55.7558, 37.6173), (39.9042, 116.4074),
    ]


def vector(kind, lat, lon):
    leaf = s2sphere.CellId.from_lat_lng(s2sphere.LatLng.from_degrees(lat, lon))
    return {"kind": kind, "lat": lat, "lon": lon, "leaf": f"{leaf.id():016x}", "level_7": leaf.parent(7).to_token()}


lines = [json.dumps(vector(kind, lat, lon)) for kind, points in groups() for lat, lon in points]
print("[\n" + ",\n".join(lines) + "\n]")
