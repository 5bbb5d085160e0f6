"""Compares the answers of two addresses to the same searches.  compare.py ADDRESS ADDRESS"""

import json, sys, urllib.request
def ask(address, body):
    request = urllib.request.Request(address + "/_search", json.dumps(body).encode(), {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request))
    return answer["hits"]["total"], [(hit["_id"], hit["_source"], hit["sort"]) for hit in answer["hits"]["hits"]]
for distance in ["3km", "40km", "500km"]:
    for lat, lon in [(52.52, 13.40), (48.86, 2.35), (35.68, 139.69), (19.08, 72.88)]:
        at = {"lat": lat, "lon": lon}
        body = {"query": {"bool": {"filter": {"geo_distance": {"distance": distance, "location": at}}}},
                "sort": [{"_geo_distance": {"location": at, "unit": "m"}}], "size": 50, "track_total_hits": True}
        old, new = ask(sys.argv[1], body), ask(sys.argv[2], body)
        assert old == new, (body, old, new)
print("the same")
