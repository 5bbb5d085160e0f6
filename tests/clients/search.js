// The official client for JavaScript through a router: `search.js URL INDEX` prints what it found as JSON.
'use strict'

const { Client, errors } = require('@elastic/elasticsearch')

const [url, index] = process.argv.slice(2)
const client = new Client({ node: url })
const origin = { lat: 50.0, lon: 0.0 }
const nearest = [{ _geo_distance: { location: origin, order: 'asc', unit: 'm' } }]
const circle = (kilometres) => ({
  bool: { filter: [{ geo_distance: { distance: `${kilometres}km`, location: origin } }] }
})
const ids = (answer) => answer.hits.hits.map((hit) => hit._id)

// An error that the router answered with is an answer, too.
const ifAnswered = (error) => {
  if (!(error instanceof errors.ResponseError)) throw error
  return { statusCode: error.statusCode }
}

async function main () {
  const info = await client.info().catch(ifAnswered)
  const found = await client.search({ index, query: circle(750), sort: nearest, size: 5, _source_includes: ['n'] })
  const several = await client.msearch({
    searches: [
      { index }, { query: circle(250), sort: nearest },
      { index }, { query: circle(450), sort: nearest, size: 2 }
    ]
  })
  const pages = []
  for (let after; ;) {
    const page = await client.search({ index, query: circle(2050), sort: nearest, size: 6, search_after: after })
    if (ids(page).length === 0) break
    pages.push(ids(page))
    after = page.hits.hits.at(-1).sort
  }
  const aggs = { n: { terms: { field: 'n' } } }
  const refused = await client.search({ index, query: { match_all: {} }, aggs }).catch(ifAnswered)
  const count = await client.count({ index, query: circle(1050) })
  console.log(JSON.stringify({
    has_version: Boolean(info?.version?.number),
    nearest: ids(found),
    sources: found.hits.hits.map((hit) => hit._source),
    total: found.hits.total.value,
    count: count.count,
    several: several.responses.map(ids),
    pages,
    refused: refused.statusCode ?? null
  }))
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
