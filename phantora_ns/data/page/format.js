// Numbers as text, elements, tables. Rule: a number on the page carries the path of the datum that it
// shows (data-from) and its exact value (data-value).
const DATA = JSON.parse(document.getElementById("data").textContent);
const GIB = 2 ** 30;

const COUNT = new Intl.NumberFormat("en-US"), AMOUNT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 3 });
const DIGITS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 9 }); // toLocaleString makes one for each number
function digits(value, many = 4) {
  if (value === 0) return "0";
  const text = Number(value).toPrecision(many);
  return String(Number(text)).includes("e") ? text : DIGITS.format(Number(text));
}
const FORMATS = {
  time: (ns) => ns >= 1e9 ? `${digits(ns / 1e9)} s` : ns >= 1e6 ? `${digits(ns / 1e6)} ms` : ns >= 1e3 ? `${digits(ns / 1e3)} µs` : `${ns} ns`,
  bytes: (n) => n >= GIB ? `${(n / GIB).toFixed(2)} GiB` : n >= 2 ** 20 ? `${(n / 2 ** 20).toFixed(1)} MiB` : n >= 1024 ? `${(n / 1024).toFixed(1)} KiB` : `${n} B`,
  share: (x) => `${(100 * x).toFixed(1)} %`,
  count: (n) => COUNT.format(Number(n)),
  amount: (x) => AMOUNT.format(Number(x.toPrecision(6))),
  rate: (x) => `${digits(x)} GB/s`,
  seconds: (s) => `${digits(s)} s`,
  text: (x) => String(x),
};

function at(path) {
  return path.split(".").reduce((value, key) => (value === null || value === undefined ? value : value[key]), DATA);
}
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
// The datum at `path`, formatted; a dash when it is not known.
function number(path, format) {
  const value = at(path);
  if (value === null || value === undefined) return element("span", { "data-from": path, title: `${path}: not known` }, "–");
  return element("span", { "data-from": path, "data-value": value, title: `${path} = ${value}` }, FORMATS[format](value));
}
function figure(label, ...content) {
  return element("div", {}, element("b", {}, ...content), element("span", { class: "label" }, label));
}
// `columns`: [heading, format or null for text, key or function(row, index)].
function table(columns, rows, caption) {
  const numeric = (column) => (column[1] ? "n" : null);
  const head = element("tr", {}, ...columns.map((c) => element("th", { class: numeric(c), scope: "col" }, c[0])));
  const body = rows.map((row, index) => element("tr", {}, ...columns.map((column) => {
    const value = typeof column[2] === "function" ? column[2](row, index) : row[column[2]];
    const known = value !== null && value !== undefined;
    if (value instanceof Node) return element("td", { class: numeric(column) }, value);
    const exact = column[1] && known && column[1] !== "text" ? value : null;
    return element("td", { class: numeric(column), "data-value": exact, title: exact }, known ? (column[1] ? FORMATS[column[1]](value) : String(value)) : "–");
  })));
  return element("div", { class: "wide" }, element("table", {}, caption ? element("caption", { class: "soft" }, caption) : null,
    element("thead", {}, head), element("tbody", {}, ...body)));
}
// `make()` gives the content when it is opened first. A page opens sooner without what nobody looks at.
function folded(title, make) {
  const made = element("details", {}, element("summary", {}, title));
  made.addEventListener("toggle", () => { if (made.children.length < 2) made.append(make()); });
  return made;
}
function section(id) { return document.getElementById(id); }
function say(id, text) { section(id).append(element("p", { class: "soft" }, text)); }
