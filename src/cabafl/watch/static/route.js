// Addresses of the page: #/run/ID/fleet?with=ID,ID

/** {path: ["run", ID, "fleet"], query: URLSearchParams} */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(safely), query: new URLSearchParams(query) };
}

function safely(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page. Values that are empty are left out. */
export function address(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = pairs.map(([key, value]) => `${key}=${encodeURIComponent(value).replaceAll("%2C", ",")}`).join("&");
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}
