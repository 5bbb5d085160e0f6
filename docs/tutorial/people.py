"""Five thousand people around six cities, one JSON document per line."""

import json, random
random.seed(7)
cities = [(52.52, 13.40), (48.86, 2.35), (40.71, -74.01), (35.68, 139.69), (-23.55, -46.63), (19.08, 72.88)]
for n in range(5000):
    lat, lon = random.choice(cities)
    lat, lon = round(lat + random.gauss(0, 0.6), 5), round(lon + random.gauss(0, 0.6), 5)
    person = {"id": f"p{n}", "name": f"Person {n}", "location": {"lat": lat, "lon": lon}}
    print(json.dumps(person))
