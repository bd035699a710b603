"use strict";
// Shows what is known of the token under the pointer or the cursor. Text is only ever set as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const details = document.getElementById("details");
  const context = 8;
  let current = null;

  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const visible = (text) => (text === "" ? "·" : text.replace(/\n/g, "⏎"));
  const percent = (log) => {
    const value = 100 * Math.exp(log);
    return (value >= 0.1 ? value.toFixed(1) : value.toPrecision(2)) + " %";
  };
  const tokenOf = (passage, place) => passage.querySelector(`[data-i="${place}"]`);

  function facts(one, place) {
    const i = place - 1;
    const line = make("p", "facts");
    line.append(make("span", "token", `“${visible(one.texts[place])}”`));
    if (i < 0) {
      line.append(make("span", "muted", "the first token: nothing stands before it"));
      return line;
    }
    const difference = one.reference[i] - one.model[i];
    line.append(
      make("span", "", `${data.model}: ${percent(one.model[i])}`),
      make("span", "", `${data.reference}: ${percent(one.reference[i])}`),
      make("span", "", `difference ${difference >= 0 ? "+" : ""}${difference.toFixed(2)} nats`),
      make("span", "muted", `place ${i}, bigram ${one.counts[i].toLocaleString("en")}× in training`),
    );
    return line;
  }

  function earlier(one, place) {
    const i = place - 1;
    if (i < 0 || one.earlier[i] < 0) return make("p", "muted", "this bigram is new in the window");
    const then = one.earlier[i] + 1;
    const rare = one.counts[i] < data.threshold;
    const line = make("p", "quote");
    line.append(make("span", "muted", `${rare ? "AR hit" : "repeated, but frequent in training"}: `
      + `${place - then} tokens back, `));
    const part = (from, to) => one.texts.slice(Math.max(0, from), Math.max(0, to)).join("");
    line.append("… " + part(then - 1 - context, then - 1).replace(/\n/g, "⏎"));
    line.append(make("mark", "", part(then - 1, then + 1).replace(/\n/g, "⏎")));
    line.append(part(then + 1, then + 1 + context).replace(/\n/g, "⏎") + " …");
    return line;
  }

  function show(token) {
    for (const node of document.querySelectorAll(".at, .was")) node.classList.remove("at", "was");
    current = token;
    const passage = token.closest(".passage");
    const one = data.passages[passage.dataset.p];
    const place = Number(token.dataset.i);
    token.classList.add("at");
    const then = place > 0 ? one.earlier[place - 1] : -1;
    if (then >= 0) {
      for (const node of [tokenOf(passage, then), tokenOf(passage, then + 1)]) {
        if (node !== token) node.classList.add("was");
      }
    }
    details.replaceChildren(facts(one, place), earlier(one, place));
  }

  function move(passage, step, hits) {
    const here = current && current.closest(".passage") === passage ? current : null;
    let next = here ? (step > 0 ? here.nextElementSibling : here.previousElementSibling)
      : passage.firstElementChild;
    while (hits && next && !next.classList.contains("h")) {
      next = step > 0 ? next.nextElementSibling : next.previousElementSibling;
    }
    if (!next) return;
    show(next);
    next.scrollIntoView({ block: "center" });
  }

  for (const passage of document.querySelectorAll(".passage")) {
    for (const kind of ["mouseover", "click"]) {
      passage.addEventListener(kind, (event) => {
        const token = event.target.closest(".t");
        if (token) show(token);
      });
    }
    passage.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const moves = { ArrowRight: [1, false], ArrowLeft: [-1, false], n: [1, true], p: [-1, true] };
      const found = moves[event.key];
      if (!found) return;
      event.preventDefault();
      move(passage, ...found);
    });
  }
})();
