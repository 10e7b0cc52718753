"use strict";
// Tables of several rows sort by a column: a press on its head, or Enter. Numbers by their exact value, dashes last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2 || [...body.rows].some((row) => row.cells.length !== heads.length)) continue;
  const key = (row, column) => {
    const cell = row.cells[column], exact = cell.querySelector("data");
    if (exact) return Number(exact.value);
    const text = cell.textContent.trim();
    return text === "" || isNaN(text) ? text : Number(text);
  };
  const rank = (value) => (value === "" || value === "–" || Number.isNaN(value) ? 2 : typeof value === "string" ? 1 : 0);
  const sort = (column) => {
    const head = heads[column], up = head.getAttribute("aria-sort") === "descending";
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => {
      if (rank(a) !== rank(b) || rank(a) === 2) return rank(a) - rank(b);
      const order = rank(a) ? a.localeCompare(b) : a - b;
      return up ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    head.classList.add("sorts");
    head.addEventListener("click", () => sort(column));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(column);
    });
  });
}
