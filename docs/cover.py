#!/usr/bin/env python3
"""Which geoshards a circle, a box or a polygon touches: the rule, to be read and to be translated.

The map is a list of ranges of S2 leaf cell ids, each from its `from` up to the next one's. A cell covers a range of leaves. The
walk begins with the six faces of the cube. For each cell find the ranges that hold some of its leaves. If all their geoshards are
in the cover, skip the cell. Otherwise compare it with the grown shape:

- outside: skip;
- inside: add all its geoshards;
- meets: add its geoshard if there is one only, else visit the four children;
- near (undecided): visit the children.

It ends, since ranges begin at leaves and a leaf is never near. A circle is compared with a cell on the sphere, a circle of more
than 90 degrees as the outside of the opposite one. A box or polygon is compared in degrees with the smallest latitude-longitude
rectangle that holds the cell, grown by the margin, unturned and turned by 360 degrees both ways. It is near where a side crosses
the rectangle, down to cells of about 1/1024 of the outline's length; this only affects tightness.

    cover.py MAP --circle LAT,LON,METRES
    cover.py MAP --box TOP,LEFT,BOTTOM,RIGHT
    cover.py MAP --polygon LAT,LON LAT,LON LAT,LON ...
    cover.py --check VECTORS
"""

import json
import sys
from bisect import bisect_right
from math import atan, atan2, cos, degrees, hypot, pi, radians, sin, sqrt

EARTH_RADIUS = 6371008.7714
OUTSIDE, NEAR, MEETS, INSIDE = range(4)


# Cells

POS_TO_IJ = [[0, 1, 3, 2], [0, 2, 3, 1], [3, 2, 0, 1], [3, 1, 0, 2]]
POS_TO_ORIENTATION = [1, 0, 0, 3]


def st_to_uv(s):
    return (4 * s * s - 1) / 3 if s >= 0.5 else (1 - 4 * (1 - s) * (1 - s)) / 3


class Cell:
    def __init__(self, id, face, orientation, s, t, size, u, v):
        self.id, self.face, self.orientation = id, face, orientation
        self.s, self.t, self.size, self.u, self.v = s, t, size, u, v
        self.bit = id & -id
        self.level = 30 - (self.bit.bit_length() - 1) // 2
        self.first_leaf, self.last_leaf = id - self.bit + 1, id + self.bit - 1

    @staticmethod
    def of_face(face):
        return Cell((face << 61) + (1 << 60), face, face & 1, 0.0, 0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0))

    def children(self):
        half, step = self.size / 2, self.bit >> 2
        u_mid, v_mid = st_to_uv(self.s + half), st_to_uv(self.t + half)
        for position in range(4):
            ij = POS_TO_IJ[self.orientation][position]
            right, upper = ij >> 1, ij & 1
            yield Cell(
                self.id + (2 * position - 3) * step,
                self.face,
                self.orientation ^ POS_TO_ORIENTATION[position],
                self.s + right * half,
                self.t + upper * half,
                half,
                (u_mid, self.u[1]) if right else (self.u[0], u_mid),
                (v_mid, self.v[1]) if upper else (self.v[0], v_mid),
            )

    def corners(self):
        return [(u, v) for u in self.u for v in self.v]


# The walk

def cover(map, shape):
    starts = [0] + [int(range["from"], 16) for range in map["ranges"][1:]]
    owners = [range["shard"] for range in map["ranges"]]
    if shape is None:
        return sorted(set(owners))
    found = set()

    def visit(cell):
        begin = max(bisect_right(starts, cell.first_leaf) - 1, 0)
        end = bisect_right(starts, cell.last_leaf)
        here = set(owners[begin:end])
        if here <= found:
            return
        relation = shape.relation(cell)
        if relation == INSIDE or (relation == MEETS and len(here) == 1):
            found.update(here)
        elif relation != OUTSIDE:
            for child in cell.children():
                visit(child)

    for face in range(6):
        visit(Cell.of_face(face))
    return sorted(found)


# Circles

def circle(lat, lon, metres):
    """None for the whole globe."""
    return None if metres >= 20e6 else Circle(lat, lon, metres)


class Circle:
    MARGIN_METRES = 1.0

    def __init__(self, lat, lon, metres):
        angle = (metres + self.MARGIN_METRES) / EARTH_RADIUS
        lat, lon = radians(lat), radians(lon)
        x, y, z = cos(lat) * cos(lon), cos(lat) * sin(lon), sin(lat)
        self.inverted = angle > pi / 2
        if self.inverted:
            x, y, z, angle = -x, -y, -z, pi - angle
        self.centres = [(y, z, x), (-x, z, y), (-x, -y, z), (-z, -y, -x), (-z, x, -y), (y, x, -z)]
        self.sine2 = sin(angle) ** 2
        self.chord2 = 4 * sin(angle / 2) ** 2

    def relation(self, cell):
        if self.holds(cell):
            return OUTSIDE if self.inverted else INSIDE
        if self.meets(cell):
            return MEETS
        return INSIDE if self.inverted else OUTSIDE

    def holds(self, cell):
        return all(self.has(cell.face, u, v) for u, v in cell.corners())

    def meets(self, cell):
        cu, cv, cw = self.centres[cell.face]
        sides = [
            (cu, cell.u[0], -1, cv, cell.v),
            (cu, cell.u[1], 1, cv, cell.v),
            (cv, cell.v[0], -1, cu, cell.u),
            (cv, cell.v[1], 1, cu, cell.u),
        ]
        outside = [outward * (across - at * cw) for across, at, outward, _, _ in sides]
        for distance, (_, at, _, _, _) in zip(outside, sides):
            if distance > 0 and distance**2 > self.sine2 * (1 + at * at):
                return False
        if max(outside) <= 0:
            return True
        for across, at, _, along, (begin, end) in sides:
            distance = across - at * cw
            if distance**2 <= self.sine2 * (1 + at * at):
                foot_w = cw + distance * at / (1 + at * at)
                if begin * foot_w <= along <= end * foot_w:
                    return True
        return any(self.has(cell.face, u, v) for u, v in cell.corners())

    def has(self, face, u, v):
        length = sqrt(1 + u * u + v * v)
        corner = (u / length, v / length, 1 / length)
        return sum((c - p) ** 2 for c, p in zip(self.centres[face], corner)) <= self.chord2


# Boxes and polygons

def box(top, left, bottom, right):
    right += 360 if left > right else 0
    return Polygon([(bottom, left), (bottom, right), (top, right), (top, left)])


class Polygon:
    MARGIN_DEGREES = 1e-6
    STEPS_ALONG = 1024

    def __init__(self, vertices):
        self.sides = list(zip(vertices, vertices[1:] + vertices[:1]))
        lats, lons = [lat for lat, _ in vertices], [lon for _, lon in vertices]
        self.bounds = (min(lats), max(lats), min(lons), max(lons))
        smallest = sum(length(side) for side in self.sides) / self.STEPS_ALONG
        self.finest, size = 0, 90.0
        while size > smallest and self.finest < 30:
            self.finest, size = self.finest + 1, size / 2

    def relation(self, cell):
        south, north, west, east = bounds(cell)
        margin = self.MARGIN_DEGREES
        for turn in (0, -360, 360):
            rectangle = (south - margin, north + margin, west + turn - margin, east + turn + margin)
            if not overlap(rectangle, self.bounds):
                continue
            if any(crosses(side, rectangle) for side in self.sides):
                return NEAR if cell.level < self.finest else MEETS
            if self.has(rectangle[0], rectangle[2]):
                return INSIDE
        return OUTSIDE

    def has(self, lat, lon):
        inside = False
        for (lat_1, lon_1), (lat_2, lon_2) in self.sides:
            if (lat_1 > lat) != (lat_2 > lat):
                inside ^= lon < lon_1 + (lon_2 - lon_1) * ((lat - lat_1) / (lat_2 - lat_1))
        return inside


def overlap(a, b):
    return a[0] <= b[1] and b[0] <= a[1] and a[2] <= b[3] and b[2] <= a[3]


def crosses(side, rectangle):
    (lat_1, lon_1), (lat_2, lon_2) = side
    own = (min(lat_1, lat_2), max(lat_1, lat_2), min(lon_1, lon_2), max(lon_1, lon_2))
    if not overlap(own, rectangle):
        return False
    turns = [
        (lon_2 - lon_1) * (lat - lat_1) - (lat_2 - lat_1) * (lon - lon_1)
        for lat in rectangle[:2]
        for lon in rectangle[2:]
    ]
    return not (min(turns) > 0 or max(turns) < 0)


def length(side):
    (lat_1, lon_1), (lat_2, lon_2) = side
    nearest = min(abs(lat_1), abs(lat_2)) if (lat_1 < 0) == (lat_2 < 0) else 0
    return hypot(lat_2 - lat_1, (lon_2 - lon_1) * cos(radians(nearest)))


def bounds(cell):
    """South, north, west, east of a cell in degrees."""
    u, v = cell.u, cell.v
    minus = lambda pair: (-pair[1], -pair[0])
    if cell.face == 0:
        return beside_axis(0, u, v)
    if cell.face == 1:
        return beside_axis(90, u, v)
    if cell.face == 2:
        return around_pole(minus(u), minus(v))
    if cell.face == 3:
        return beside_axis(180, v, minus(u))
    if cell.face == 4:
        return beside_axis(-90, v, minus(u))
    south, north, west, east = around_pole(v, u)
    return (-north, -south, west, east)


def nearest(pair):
    """To 0, of the numbers from one to the other."""
    return pair[0] if pair[0] > 0 else pair[1] if pair[1] < 0 else 0.0


def farthest(pair):
    return max(abs(pair[0]), abs(pair[1]))


def beside_axis(middle, a, z):
    latitude = lambda z, a: degrees(atan(z / hypot(1, a)))
    return (
        latitude(z[0], nearest(a) if z[0] < 0 else farthest(a)),
        latitude(z[1], nearest(a) if z[1] > 0 else farthest(a)),
        middle + degrees(atan(a[0])),
        middle + degrees(atan(a[1])),
    )


def around_pole(x, y):
    latitude = lambda x, y: degrees(atan2(1, hypot(x, y)))
    south, north = latitude(farthest(x), farthest(y)), latitude(nearest(x), nearest(y))
    if north > 90 - 1e-4:
        return (south, north, -180.0, 180.0)
    mx, my = x[0] + x[1], y[0] + y[1]
    middle = degrees(atan2(my, mx))
    lons = [middle + degrees(atan2(mx * cy - my * cx, mx * cx + my * cy)) for cx in x for cy in y]
    return (south, north, min(lons), max(lons))


# The command line

def check(path):
    with open(path) as file:
        vectors = json.load(file)
    wrong = 0
    for number, case in enumerate(vectors["cases"]):
        if "circle" in case:
            shape = circle(*(case["circle"][key] for key in ("lat", "lon", "metres")))
        elif "box" in case:
            shape = box(*(case["box"][key] for key in ("top", "left", "bottom", "right")))
        else:
            shape = Polygon([tuple(vertex) for vertex in case["polygon"]])
        found = cover(vectors["maps"][case["map"]], shape)
        if found != case["shards"]:
            wrong += 1
            print(f"case {number}: {found} in place of {case['shards']}")
    print(f"{len(vectors['cases'])} cases, {wrong} wrong")
    return 1 if wrong else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--check":
        return check(arguments[1])
    if len(arguments) < 3:
        print(__doc__)
        return 2
    with open(arguments[0]) as file:
        map = json.load(file)
    numbers = [[float(number) for number in text.split(",")] for text in arguments[2:]]
    make = {"--circle": lambda: circle(*numbers[0]), "--box": lambda: box(*numbers[0])}
    shape = make.get(arguments[1], lambda: Polygon([tuple(vertex) for vertex in numbers]))()
    print("\n".join(cover(map, shape)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
