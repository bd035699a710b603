// Keys and pointer.

let under = null; // the row below the pointer

const moveTo = (button) => {
  const pane = button.closest(".pane");
  for (const old of pane.querySelectorAll('.o > button[tabindex="0"]')) old.tabIndex = -1;
  button.tabIndex = 0;
};
const visible = (node) => {
  const place = node.localName === "summary" ? node.parentElement.parentElement : node;
  return !place.closest("details:not([open])");
};
const move = (from, by) => {
  const stops = [...from.closest(".pane").querySelectorAll("summary, .o > button")].filter(visible);
  const to = stops[stops.indexOf(from) + by];
  if (to) to.focus();
};
const typing = (node) => node.localName === "input";

document.querySelector("main").addEventListener("pointerover", (event) => {
  const row = rowOf(event.target);
  if (row && row !== under) show(row);
  under = row;
});
document.querySelector("main").addEventListener("pointerleave", () => {
  under = null;
  if (chosen) chosen();
  else markKin([]);
});
document.querySelector("main").addEventListener("focusin", (event) => {
  const row = rowOf(event.target);
  if (!row || event.target !== buttonOf(row)) return;
  moveTo(event.target);
  show(row);
});
document.querySelector("main").addEventListener("click", (event) => {
  const row = rowOf(event.target);
  if (event.target.matches(".open, .close")) {
    const open = event.target.matches(".open");
    const boxes = event.target.closest(".pane").querySelectorAll(".scroll details");
    for (const box of boxes) box.open = open || box.matches(".body");
  } else if (event.target.dataset.v !== undefined) {
    chooseValue(row.id[0], Number(event.target.dataset.v), false);
  } else if (row && !event.target.closest("summary")) {
    choose(row, false);
  }
});
document.querySelector("main").addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by && event.target.matches("summary, .o > button")) {
    event.preventDefault();
    move(event.target, by);
  }
  // Once more on a chosen op: on to its values, which are buttons in the details.
  if (event.key === "Enter" && rowOf(event.target)?.classList.contains("chosen")) {
    event.preventDefault();
    details.querySelector("button")?.focus();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !typing(event.target)) {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape" && details.contains(event.target)) {
    returnTo?.focus();
  } else if (event.key === "Escape" && !typing(event.target)) {
    clear();
  }
});
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  step(1);
});
document.getElementById("previous").addEventListener("click", () => step(-1));
query.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.shiftKey) return;
  event.preventDefault();
  step(-1);
});
query.addEventListener("input", search);
document.querySelector("header").addEventListener("click", (event) => {
  if (!event.target.matches(".find")) return;
  query.value = `op:${event.target.textContent}`;
  search();
  step(1);
});

const start = () => {
  const address = new URLSearchParams(location.hash.slice(1));
  invite();
  if (window.matchMedia("(max-height: 700px)").matches) {
    document.getElementById("kinds").open = false; // Little room: the graphs come first.
  }
  if (address.get("q")) {
    query.value = address.get("q");
    search();
    step(1);
  }
  const row = document.getElementById(address.get("op") || "");
  if (row?.matches(".o")) choose(row, true);
  const value = /^([cl])(\d+)$/.exec(address.get("value") || "");
  if (value) chooseValue(value[1], Number(value[2]), true);
  for (const pane of Object.values(panes)) {
    const first = pane.querySelector(".o > button");
    if (first && !pane.querySelector('.o > button[tabindex="0"]')) first.tabIndex = 0;
  }
};
start();
