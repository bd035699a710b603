// Search: all words must stand in the op, results, attributes, module or decompositions of a row.
// Source files count only for a word such as "mixer.py:3": every op of attention.py would be a
// hit for "attention". "op:add" stands for the ops called add.

let texts = null;
let hits = [];
let current = -1;
const textsOfRows = () => [...document.querySelectorAll(".o")].map((row) => {
  const own = [...row.children].filter((node) => node.matches(".d, .a, .b, button"));
  const words = own.map((node) => node.textContent);
  const places = data[row.id[0]].chains[fact(row)[0]];
  const long = data[row.id[0]].attributes[row.id.slice(1)] || "";
  const steps = places.map((place) => place.replace(/ \([^()]*\)$/, ""));
  const text = [...words, long, ...steps].join(" ").toLowerCase();
  return [text, `op:${buttonOf(row).textContent}`, places.join(" ").toLowerCase(), row];
});
const matches = (word, text, op, places) =>
  text.includes(word) || op === word || (word.includes(".py") && places.includes(word));
const search = () => {
  texts = texts || textsOfRows();
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = texts.filter((entry) => words.every((word) => matches(word, ...entry)));
  hits = words.length ? found.map((entry) => entry[3]) : [];
  current = -1;
  mark("hit", hits);
  mark("at", []);
  countInBoxes();
  report();
  settle("q", query.value);
};
const countInBoxes = () => {
  for (const box of document.querySelectorAll("[data-hits]")) delete box.dataset.hits;
  const counts = new Map();
  for (const row of hits) for (const box of boxesOf(row)) counts.set(box, (counts.get(box) || 0) + 1);
  for (const [box, count] of counts) box.querySelector("summary").dataset.hits = count;
};
const report = () => {
  const left = hits.filter((row) => row.id[0] === "c").length;
  const found = { c: left, l: hits.length - left };
  const asked = query.value.trim() !== "";
  for (const letter of ["c", "l"]) {
    panes[letter].querySelector(".hits").textContent = asked ? `${found[letter]} found` : "";
  }
  const where = current < 0 ? "" : `${current + 1} of `;
  document.getElementById("found").textContent = asked ? `${where}${hits.length} found` : "";
};
const step = (by) => {
  if (!hits.length) return;
  current = current < 0 && by < 0 ? hits.length - 1 : (current + by + hits.length) % hits.length;
  mark("at", [hits[current]]);
  reveal(hits[current]);
  show(hits[current]);
  report();
};
