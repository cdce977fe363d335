// Tables that do not fit get smaller type; those that still do not fit are folded.
const MAX_ROW_HEIGHT = 200; // in pixels: a taller row has columns that are too narrow to read

function fits(table) {
  const rows = [...table.tBodies[0].rows];
  return table.scrollWidth <= table.parentElement.clientWidth + 1
    && rows.every((row) => row.offsetHeight <= MAX_ROW_HEIGHT);
}

function fitTables() {
  for (const table of document.querySelectorAll(".content table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => { cell.dataset.column = names[column] ?? ""; });
    }
    table.classList.remove("small", "folded");
    for (const look of ["small", "folded"]) {
      if (!fits(table)) table.classList.add(look);
    }
  }
}
window.addEventListener("load", fitTables);
window.addEventListener("resize", fitTables);
