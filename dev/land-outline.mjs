// Turns Natural Earth's land outline into the compact SVG path that the status page ships.
//
//   npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
//   node dev/land-outline.mjs package/land-110m.json > src/admin/page/land.svg.txt
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

function ring(numbers) {
  const points = numbers.flatMap((n) => (n < 0 ? arcs[~n].toReversed() : arcs[n]));
  return points.filter(([x, y], i) => i === 0 || x !== points[i - 1][0] || y !== points[i - 1][1]);
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
const rings = polygons.flat().map(ring).filter((points) => points.length > 3);
console.log(rings.map(path).join("\n"));
