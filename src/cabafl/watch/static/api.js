// Requests to the server. See docs/watch-api.md.

/** What the server said no to. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const KINDS = { u1: Uint8Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };

export const session = { version: "", login_required: false, operator: false, csrf: null, roots: [] };

let onLogin = async () => false;

/** Sets who asks for the secret when a request needs a log-in; resolves to whether it was given. */
export function whenLoginIsNeeded(ask) {
  onLogin = ask;
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the server does not answer");
  }
  if (response.ok) return response;
  let text = `status ${response.status}`;
  try {
    text = String((await response.json()).error ?? text);
  } catch {
    // not JSON: the status says it all
  }
  throw new Refused(response.status, text);
}

async function asked(path, options) {
  try {
    return await request(path, options);
  } catch (error) {
    if (error.status !== 401) throw error;
    Object.assign(session, { operator: false, csrf: null });
    if (!(await onLogin())) throw error;
    return request(path, options);
  }
}

/** A JSON answer. Asks for a log-in if the server wants one. */
export async function get(path, signal) {
  return (await asked(path, { headers: { Accept: "application/json" }, signal })).json();
}

/** A table of typed arrays: the header, and the arrays by name. */
export async function getArrays(path, signal) {
  const bytes = await (await asked(path, { signal })).arrayBuffer();
  const size = new DataView(bytes).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, size)));
  const arrays = {};
  for (const { name, type, offset, length } of header.arrays) arrays[name] = new KINDS[type](bytes, offset, length);
  return { header, arrays };
}

/** Who we are to the server. */
export async function loadSession() {
  Object.assign(session, await get("/api/session"));
  return session;
}

function posted(body) {
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  if (session.csrf) headers["X-CSRF-Token"] = session.csrf;
  return { method: "POST", headers, body: JSON.stringify(body) };
}

/** Logs in; throws `Refused` if the secret is wrong. */
export async function login(secret) {
  const answer = await (await request("/api/login", posted({ secret }))).json();
  Object.assign(session, { operator: true, csrf: answer.csrf });
}

/** Ends the session. */
export async function logout() {
  await request("/api/logout", posted({}));
  Object.assign(session, { operator: false, csrf: null });
}

/** An operator's action, already confirmed; returns the response. */
export function act(path) {
  return request(path, posted({ confirm: true }));
}
