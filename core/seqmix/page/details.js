// The details below.

const make = (tag, text, name) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
};
const action = (text, run) => {
  const button = make("button", text, "code");
  button.type = "button";
  button.addEventListener("click", run);
  return button;
};
const list = (title, items) => {
  const block = make("div");
  block.append(make("h3", title));
  const lines = make("ul");
  lines.style.listStyle = "none";
  for (const item of items) {
    const line = make("li");
    line.append(...item);
    lines.append(line);
  }
  block.append(items.length ? lines : make("p", "none", "muted"));
  return block;
};
const rowButtons = (rows) => {
  const buttons = rows.slice(0, MOST).map((row) => action(labelOf(row), () => choose(row, true)));
  return rows.length > MOST ? [...buttons, `and ${rows.length - MOST} more`] : buttons;
};
const labelOf = (row) => {
  const made = fact(row)[2].map((value) => nameOf(row.id[0], value)).join(", ");
  return made ? `${made} = ${buttonOf(row).textContent}` : buttonOf(row).textContent;
};
const valueLine = (letter, role, value) => {
  if (value < 0) return [`${role} `, make("span", "none", "muted")];
  const button = action(nameOf(letter, value), () => chooseValue(letter, value, true));
  return [`${role} `, button, make("span", typeOf(letter, value), "code muted")];
};
const roleOf = (op, index) => {
  const names = data.operands[op] || [];
  const last = names[names.length - 1] || "";
  if (last.startsWith("*") && index >= names.length - 1) {
    return `${last.slice(1)}[${index - names.length + 1}]`;
  }
  return (names[index] || "").replace("?", "");
};
const describe = (row) => {
  const letter = row.id[0];
  const op = buttonOf(row).textContent;
  const [chain, operands, results] = fact(row);
  const [path, ...places] = data[letter].chains[chain];
  const columns = make("div", undefined, "columns");
  const inputs = operands.map((value, i) => valueLine(letter, roleOf(op, i), value));
  const others = kinOf(row);
  const seen = new Set(places);
  columns.append(
    list("operands", inputs),
    list("results", results.map((value) => valueLine(letter, "", value))),
    list("location", seen.size ? places.map((p, i) => [i ? `from ${p}` : p]) : []),
    list(`${titles[otherSide(letter)]}: ${others.length}`, others.length ? [rowButtons(others)] : []),
  );
  const attributes = data[letter].attributes[row.id.slice(1)]
    || (row.querySelector(":scope > .a") || { textContent: "" }).textContent;
  const head = make("h2", `${op} `);
  head.append(make("span", path ? `in ${path}` : "", "muted"));
  details.replaceChildren(head, make("p", attributes, "code"), columns);
};
const describeValue = (letter, value) => {
  const [first, ...rest] = placesOf(letter, value);
  const users = [...new Set((defines(first) ? rest : [first, ...rest]).map(rowOf))];
  const head = make("h2", `${nameOf(letter, value)} `);
  head.append(make("span", typeOf(letter, value), "code muted"));
  const columns = make("div", undefined, "columns");
  columns.append(
    list("made by", [rowButtons([rowOf(first)])]),
    list(`used by ${users.length}`, users.length ? [rowButtons(users)] : []),
  );
  details.replaceChildren(head, columns);
};
const invite = () => {
  const hint = "Point at an op, or move to it with the keys, to see its types and where it "
    + "comes from. A click keeps it, and opens what became of it on the other side. "
    + "A click on a value marks the op that makes it and those that use it.";
  details.replaceChildren(make("p", hint, "muted"));
};

// What is chosen: an op, or a value of a side, or nothing. The address remembers it.

let chosen = null;
let returnTo = null;
const settle = (key, text) => {
  const address = new URLSearchParams(location.hash.slice(1));
  for (const old of ["op", "value"]) if (key !== "q") address.delete(old);
  if (text) address.set(key, text);
  else address.delete(key);
  history.replaceState(null, "", `#${address}`);
};
const choose = (row, scroll) => {
  chosen = () => show(row);
  mark("chosen", [row]);
  clearValue();
  show(row);
  returnTo = buttonOf(row);
  if (scroll) reveal(row);
  const [first] = kinOf(row);
  if (first) reveal(first);
  settle("op", row.id);
};
const show = (row) => {
  describe(row);
  markKin(kinOf(row));
};
const chooseValue = (letter, value, scroll) => {
  const places = placesOf(letter, value);
  if (!places.length) return;
  const rows = places.map(rowOf);
  chosen = () => {
    describeValue(letter, value);
    markKin([]);
  };
  mark("chosen", []);
  mark("value", places);
  const makers = defines(places[0]) ? rows.slice(0, 1) : [];
  mark("made", makers);
  mark("used", rows.slice(makers.length));
  chosen();
  returnTo = buttonOf(rows[0]);
  if (scroll) reveal(rows[0]);
  settle("value", letter + value);
};
const clearValue = () => ["value", "made", "used"].forEach((name) => mark(name, []));
const clear = () => {
  chosen = null;
  clearValue();
  mark("chosen", []);
  markKin([]);
  invite();
  settle("op", "");
};
