(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");

  var theme = document.getElementById("theme");
  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function name() {
    theme.textContent = dark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", "Switch to the " + (dark() ? "light" : "dark") + " theme");
    theme.setAttribute("aria-pressed", String(dark()));
  }
  theme.addEventListener("click", function () { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();

  function sortBy(table, head, place) {
    var up = head.getAttribute("aria-sort") !== "ascending";
    var numeric = head.hasAttribute("data-n");
    var words = new Intl.Collator(undefined, { numeric: true });
    var rows = Array.from(table.tBodies[0].rows, function (row) {
      var cell = row.cells[place];
      var text = cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v;
      return { row: row, key: numeric ? parseFloat(text) : text };
    });
    rows.sort(function (a, b) {
      // what has no number comes last, whichever way the others are sorted
      if (numeric && (isNaN(a.key) || isNaN(b.key))) { return isNaN(a.key) - isNaN(b.key); }
      var order = numeric ? a.key - b.key : words.compare(a.key, b.key);
      return up ? order : -order;
    });
    table.tBodies[0].append.apply(table.tBodies[0], rows.map(function (one) { return one.row; }));
    table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.setAttribute("aria-sort", "none"); });
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.from(table.tHead.rows[0].cells).forEach(function (head, place) {
      if (head.tagName !== "TH") { return; }
      var button = document.createElement("button");
      button.type = "button";
      button.append.apply(button, Array.from(head.childNodes));
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () { sortBy(table, head, place); });
    });
  });

  var records = document.getElementById("records");
  if (records) {
    var find = document.getElementById("find");
    var kind = document.getElementById("class");
    var member = document.getElementById("member");
    var count = document.getElementById("count");
    var all = count.textContent;
    var texts = new Map(Array.from(records.tBodies[0].rows, function (row) {
      return [row, Array.from(row.cells, function (cell) { return cell.textContent; }).join(" ").toLowerCase()];
    }));
    var filter = function () {
      var wanted = find.value.trim().toLowerCase();
      var shown = 0;
      texts.forEach(function (text, row) {
        var fits = text.indexOf(wanted) >= 0
          && (!kind.value || row.dataset.b === kind.value || row.dataset.a === kind.value)
          && (!member || !member.checked || row.hasAttribute("data-m"));
        row.hidden = !fits;
        shown += fits ? 1 : 0;
      });
      count.textContent = shown === texts.size ? all : shown + " of " + all + " shown";
    };
    [find, kind, member].forEach(function (control) {
      if (control) { control.addEventListener("input", filter); }
    });
    filter();  // a reload may give back what was typed before
  }

  var tip = document.getElementById("tip");
  function light(point, on) {
    document.querySelectorAll('.map .point[data-i="' + point.dataset.i + '"]').forEach(function (twin) {
      twin.classList.toggle("lit", on);
      // what is drawn last lies on top; the one under the pointer stays, or the pointer would leave it
      if (on && twin !== point) { twin.parentNode.append(twin); }
    });
  }
  function show(event) {
    var point = event.target;
    tip.textContent = point.dataset.tip;
    tip.hidden = false;
    var x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    var y = event.clientY + 16 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, y) + "px";
    light(point, true);
  }
  function hide(event) {
    tip.hidden = true;
    light(event.target, false);
  }
  document.querySelectorAll(".map .point").forEach(function (point) {
    point.addEventListener("pointerenter", show);
    point.addEventListener("pointermove", show);
    point.addEventListener("pointerleave", hide);
    point.addEventListener("click", show);
  });

  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details.hash:not([open])"));
    opened.forEach(function (part) { part.open = true; });
  });
  window.addEventListener("afterprint", function () { opened.forEach(function (part) { part.open = false; }); });
}());
