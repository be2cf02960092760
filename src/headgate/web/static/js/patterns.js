// Stacked columns differ in more than their colour: the first is plain, the second hatched, the third dotted. The same for a
// canvas and for the legend.
const KINDS = ["plain", "hatched", "dotted"];
const TILE = 6; // CSS pixels

const soft = (colour, percent) => `color-mix(in srgb, ${colour} ${percent}%, transparent)`;

// What fills columns of a canvas. Opaque: a column covers those that are drawn below it.
export function filling(context, index, colour, ground) {
  const kind = KINDS[index % KINDS.length];
  const size = Math.round(TILE * devicePixelRatio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = soft(colour, kind === "plain" ? 55 : 15);
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = colour;
  if (kind === "hatched") {
    pen.lineWidth = size / 4;
    for (const x of [-size, 0, size]) {
      pen.beginPath();
      pen.moveTo(x - 1, size + 1);
      pen.lineTo(x + size + 1, -1);
      pen.stroke();
    }
  } else if (kind === "dotted") {
    pen.beginPath();
    pen.arc(size / 2, size / 2, size / 3.2, 0, 2 * Math.PI);
    pen.fill();
  }
  return context.createPattern(tile, "repeat");
}

// The same as a background of CSS.
export function background(index, colour) {
  const kind = KINDS[index % KINDS.length];
  if (kind === "hatched") return `repeating-linear-gradient(135deg, ${colour} 0 1.5px, ${soft(colour, 15)} 1.5px 4px)`;
  if (kind === "dotted") return `radial-gradient(circle at center, ${colour} 35%, ${soft(colour, 15)} 40%) 0 0 / 5px 5px`;
  return soft(colour, 55);
}
