"use strict";
// One script is made of rows.js, details.js, search.js and page.js, in this order.

const data = JSON.parse(document.getElementById("data").textContent);
const details = document.getElementById("details");
const query = document.getElementById("q");
const panes = { c: document.getElementById("c"), l: document.getElementById("l") };
const titles = { c: "captured", l: "legalized" };
const MOST = 40; // Buttons that a list of the details holds: more help nobody.

// Rows: "c12" is row 12 of the captured side.

const rowOf = (node) => node.closest(".o");
const fact = (row) => data[row.id[0]].rows[Number(row.id.slice(1))];
const byId = (letter, index) => document.getElementById(letter + index);
const buttonOf = (row) => row.querySelector(":scope > button");
const typeOf = (letter, value) => data[letter].types[data[letter].values[value]];

const kin = { c: new Map(), l: new Map() };
for (const [row, origins] of data.origins) {
  kin.l.set(row, origins);
  for (const origin of origins) {
    if (!kin.c.has(origin)) kin.c.set(origin, []);
    kin.c.get(origin).push(row);
  }
}
const otherSide = (letter) => (letter === "c" ? "l" : "c");
const kinOf = (row) => {
  const found = kin[row.id[0]].get(Number(row.id.slice(1))) || [];
  return found.map((index) => byId(otherSide(row.id[0]), index));
};

const defines = (span) => span.classList.contains("d");
const occurrences = {}; // letter -> value -> the places where it stands, its definition first
const placesOf = (letter, value) => {
  if (!occurrences[letter]) {
    const places = (occurrences[letter] = new Map());
    for (const span of panes[letter].querySelectorAll("[data-v]")) {
      const key = Number(span.dataset.v);
      if (!places.has(key)) places.set(key, []);
      places.get(key)[defines(span) ? "unshift" : "push"](span);
    }
  }
  return occurrences[letter].get(value) || [];
};
const nameOf = (letter, value) => placesOf(letter, value)[0]?.textContent ?? "?";

// Marks: a class and the nodes that have it now.

const marked = {};
const mark = (name, nodes) => {
  for (const node of marked[name] || []) node.classList.remove(name);
  marked[name] = [...nodes];
  for (const node of marked[name]) node.classList.add(name);
};
const boxesOf = function* (node) {
  for (let box = node.parentElement; box; box = box.parentElement) {
    if (box.localName === "details") yield box;
  }
};
const markKin = (rows) => {
  const boxes = new Set();
  for (const row of rows) for (const box of boxesOf(row)) boxes.add(box);
  mark("kin", [...rows, ...boxes]);
};
const reveal = (row) => {
  for (const box of boxesOf(row)) box.open = true;
  row.scrollIntoView({ block: "center" });
};
