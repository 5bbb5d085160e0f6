"""The official client for Python through a router: `search.py URL INDEX` prints what it found as JSON."""

import json
import sys

from elasticsearch import ApiError, Elasticsearch

url, index = sys.argv[1:]
client = Elasticsearch(url)
origin = {"lat": 50.0, "lon": 0.0}
nearest = [{"_geo_distance": {"location": origin, "order": "asc", "unit": "m"}}]


def circle(kilometres):
    return {"bool": {"filter": [{"geo_distance": {"distance": f"{kilometres}km", "location": origin}}]}}


def ids(answer):
    return [hit["_id"] for hit in answer["hits"]["hits"]]


found = client.search(index=index, query=circle(750), sort=nearest, size=5, source_includes=["n"])
several = client.msearch(
    searches=[
        {"index": index},
        {"query": circle(250), "sort": nearest},
        {"index": index},
        {"query": circle(450), "sort": nearest, "size": 2},
    ]
)
pages, after = [], None
while True:
    more = {"search_after": after} if after else {}
    page = client.search(index=index, query=circle(2_050), sort=nearest, size=6, **more)
    if not ids(page):
        break
    pages.append(ids(page))
    after = page["hits"]["hits"][-1]["sort"]
try:
    has_version = bool(client.info()["version"]["number"])
except ApiError:
    has_version = False
try:
    client.search(index=index, query={"match_all": {}}, aggs={"n": {"terms": {"field": "n"}}})
    refused = None
except ApiError as error:
    refused = error.status_code

print(json.dumps({
    "has_version": has_version,
    "nearest": ids(found),
    "sources": [hit["_source"] for hit in found["hits"]["hits"]],
    "total": found["hits"]["total"]["value"],
    "count": client.count(index=index, query=circle(1_050))["count"],
    "several": [ids(answer) for answer in several["responses"]],
    "pages": pages,
    "refused": refused,
}))
