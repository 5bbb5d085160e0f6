// Turns Natural Earth's land outline into the compact SVG path that the status page ships.
//
//   npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
//   node dev/land-outline.mjs package/land-110m.json > src/geoshard/picture/land.svg.txt
//
// Units are tenths of a degree in equirectangular projection: x = (longitude + 180) * 10,
// y = (90 - latitude) * 10. Each ring is one absolute point, then relative lines.
import { readFileSync } from "node:fs";

const topology = JSON.parse(readFileSync(process.argv[2]));
const { scale, translate } = topology.transform;

const arcs = topology.arcs.map((arc) => {
  let x = 0;
  let y = 0;
  return arc.map(([dx, dy]) => {
    x += dx;
    y += dy;
    const [lon, lat] = [x * scale[0] + translate[0], y * scale[1] + translate[1]];
    return [Math.round((lon + 180) * 10), Math.round((90 - lat) * 10)];
  });
});

// The outline is cut at the antimeridian here: unwrapped first, so that no step is longer than half the globe.
function ring(numbers) {
  const points = [];
  for (const [x, y] of numbers.flatMap((n) => (n < 0 ? arcs[~n].toReversed() : arcs[n]))) {
    const turns = points.length === 0 ? 0 : Math.round((points.at(-1)[0] - x) / 3600);
    points.push([x + turns * 3600, y]);
  }
  const [first, last] = [points[0][0], points.at(-1)[0]];
  // A ring that goes round the globe, Antarctica's, is closed along its pole.
  if (Math.abs(last - first) > 1800) points.push([last, 1800], [first, 1800], points[0]);
  return points;
}

// What of a closed ring lies within 0 to 3600, by Sutherland and Hodgman.
function clipped(points) {
  for (const inside of [(x) => x >= 0, (x) => x <= 3600]) {
    const edge = inside(3601) ? 0 : 3600;
    const kept = [];
    points.forEach(([x, y], i) => {
      const [px, py] = points.at(i - 1);
      if (inside(x) !== inside(px)) kept.push([edge, Math.round(py + ((y - py) * (edge - px)) / (x - px))]);
      if (inside(x)) kept.push([x, y]);
    });
    points = kept;
  }
  return points;
}

function distinct(points) {
  const kept = points.filter(([x, y], i) => i === 0 || x !== points[i - 1][0] || y !== points[i - 1][1]);
  const [a, b] = [kept[0], kept.at(-1)];
  return kept.length > 1 && (a[0] !== b[0] || a[1] !== b[1]) ? [...kept, a] : kept;
}

function path(points) {
  let text = `M${points[0].join(" ")}l`;
  for (let i = 1; i < points.length - 1; i++) {
    const [dx, dy] = [points[i][0] - points[i - 1][0], points[i][1] - points[i - 1][1]];
    // A minus sign separates numbers as well as a space does.
    text += `${i > 1 && dx >= 0 ? " " : ""}${dx}${dy >= 0 ? " " : ""}${dy}`;
  }
  return `${text}z`;
}

const polygons = topology.objects.land.geometries.flatMap((geometry) => geometry.arcs);
// Islets of fewer than three distinct points at this precision have no area.
const copies = (points) => [-3600, 0, 3600].map((shift) => points.map(([x, y]) => [x + shift, y]));
const rings = polygons.flat().map(ring).flatMap(copies).map(clipped).map(distinct).filter((points) => points.length > 3);
console.log(rings.map(path).join("\n"));
