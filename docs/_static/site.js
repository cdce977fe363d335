// Tables that are wider than the page get smaller type; those that still are wider are folded.
function fitTables() {
  for (const table of document.querySelectorAll(".content table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => { cell.dataset.column = names[column] ?? ""; });
    }
    table.classList.remove("small", "folded");
    for (const look of ["small", "folded"]) {
      if (table.scrollWidth > table.parentElement.clientWidth + 1) table.classList.add(look);
    }
  }
}
window.addEventListener("load", fitTables);
window.addEventListener("resize", fitTables);
