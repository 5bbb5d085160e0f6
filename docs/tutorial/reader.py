"""Asks the address in the file `address` again and again; an error ends it."""

import json, time, urllib.request
berlin = {"lat": 52.52, "lon": 13.40}
query = {"geo_distance": {"distance": "30km", "location": berlin}}
body = {"query": {"bool": {"filter": query}}, "sort": [{"_geo_distance": {"location": berlin}}], "size": 2000, "_source": False}
while True:
    address = open("address").read().strip()
    request = urllib.request.Request(address + "/_search", json.dumps(body).encode(), {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=10))
    print(address.rsplit("/", 1)[1], len(answer["hits"]["hits"]), flush=True)
    time.sleep(0.05)
