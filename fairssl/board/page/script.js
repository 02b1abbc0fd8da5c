"use strict";
(() => {
  const tip = document.getElementById("tip");
  let tipped = null;
  const hide = () => { if (tipped) tipped.removeAttribute("aria-describedby"); tipped = null; tip.hidden = true; };
  const place = (box) => {
    tip.hidden = false;
    const mine = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left + box.width / 2 - mine.width / 2, window.innerWidth - mine.width - 8));
    const above = box.top - mine.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
  };
  const showFor = (event) => {
    const found = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (!found) { if (event.type !== "focusin") hide(); return; }
    if (found === tipped) return;
    hide();
    tipped = found;
    tip.textContent = found.dataset.tip;
    found.setAttribute("aria-describedby", "tip");
    place(found.getBoundingClientRect());
  };
  document.addEventListener("mouseover", showFor);
  document.addEventListener("focusin", showFor);
  document.addEventListener("click", showFor);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  for (const radio of document.querySelectorAll('input[name="view"]')) {
    radio.addEventListener("change", () => { document.body.dataset.view = radio.value; });
  }

  const valueOf = (row, at) => {
    const cell = row.cells[at];
    if (!cell) return null;
    if (cell.dataset.value === undefined) return cell.textContent.trim().toLowerCase();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  for (const table of document.querySelectorAll("table.board")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, at) => {
      head.querySelector("button").addEventListener("click", () => {
        const first = head.dataset.first || "ascending";
        const now = head.getAttribute("aria-sort");
        const next = now === first ? (first === "ascending" ? "descending" : "ascending") : first;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const body = table.tBodies[0];
        const rows = [...body.rows];
        rows.sort((a, b) => {
          const x = valueOf(a, at), y = valueOf(b, at);
          if (x === null || y === null) return (x === null) - (y === null) || a.dataset.order - b.dataset.order;
          return (x < y ? -sign : x > y ? sign : 0) || a.dataset.order - b.dataset.order;
        });
        rows.forEach((row) => { row.classList.remove("family-first"); body.append(row); });
        document.getElementById("said").textContent = `Sorted by ${head.textContent.trim()}, ${next}`;
      });
    });
  }

  const filter = document.getElementById("filter");
  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const row of document.querySelectorAll("table.board tbody tr")) {
      const fits = words.every((word) => row.dataset.text.includes(word));
      row.hidden = !fits;
      shown += fits; all += 1;
    }
    document.getElementById("count").textContent = words.length ? `${shown} of ${all} rows` : "";
  };
  filter.addEventListener("input", apply);

  for (const select of document.querySelectorAll("select[data-plots]")) {
    select.addEventListener("change", () => {
      for (const plot of document.querySelectorAll(`[data-plot-of="${CSS.escape(select.dataset.plots)}"]`)) {
        plot.hidden = plot.dataset.metric !== select.value;
      }
    });
  }
})();
