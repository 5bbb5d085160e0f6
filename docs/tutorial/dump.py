"""Prints every document of an index: id, tab, source.  dump.py ELASTICSEARCH INDEX"""

import json, sys, urllib.request
def ask(path, body=None, method="POST"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(sys.argv[1] + path, data, {"content-type": "application/json"}, method=method)
    return json.load(urllib.request.urlopen(request))
pit, after = ask(f"/{sys.argv[2]}/_pit?keep_alive=5m")["id"], None
while True:
    page = {"size": 1000, "pit": {"id": pit, "keep_alive": "5m"}, "sort": ["_shard_doc"]}
    if after: page["search_after"] = after
    hits = ask("/_search", page)["hits"]["hits"]
    if not hits: break
    for hit in hits: print(hit["_id"], json.dumps(hit["_source"]), sep="\t")
    after = hits[-1]["sort"]
ask("/_pit", {"id": pit}, "DELETE")
