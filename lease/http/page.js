// The status page: lists once, then follows the stream of events.
const $ = (id) => document.getElementById(id);
const state = { proxies: new Map(), leases: new Map(), cooldowns: new Map() };
let search = "", token = sessionStorage.getItem("token") || "", scheduled = false;

const headers = () => (token ? { Authorization: "Bearer " + token } : {});
async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) {
    $("token-label").hidden = false;
    throw new Error("a token with the scope read is needed");
  }
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail || answer.statusText);
  return answer.json();
}
async function all(path, key) {
  const items = [];
  for (let after = ""; ;) {
    const page = await get(path + (after ? "?after=" + encodeURIComponent(after) : ""));
    items.push(...page[key]);
    if (!(after = page.next)) return items;
  }
}
const until = (seconds) => Date.now() + seconds * 1000;
const keepLease = (l) => state.leases.set(l.id, { ...l, until: until(l.ttl_seconds) });
const coolKey = (c) => c.exit + " " + (c.target || "");
const keepCooldown = (c) => state.cooldowns.set(coolKey(c), { ...c, until: until(c.remaining_seconds) });

async function list() {
  const [proxies, leases, cooldowns] = await Promise.all([all("v1/proxies", "proxies"), all("v1/leases", "leases"), get("v1/cooldowns")]);
  for (const map of Object.values(state)) map.clear();
  for (const p of proxies) state.proxies.set(p.id, p);
  leases.forEach(keepLease);
  cooldowns.cooldowns.forEach(keepCooldown);
  $("token-label").hidden = true;
  draw();
}

// Events about leases change a proxy's state too; it is asked for after a burst.
let asked = 0;
async function refreshProxies() {
  if (asked) return;
  asked = setTimeout(async () => {
    asked = 0;
    try {
      const proxies = await all("v1/proxies", "proxies");
      state.proxies = new Map(proxies.map((p) => [p.id, p]));
      draw();
    } catch { /* the stream's own failure is shown */ }
  }, 400);
}
function apply(kind, e) {
  if (kind === "lease.ended") state.leases.delete(e.lease.id);
  else if (e.lease) keepLease(e.lease);
  if (kind === "proxy.removed") state.proxies.delete(e.proxy.id);
  else if (e.proxy) state.proxies.set(e.proxy.id, e.proxy);
  if (kind === "cooldown.ended") state.cooldowns.delete(coolKey(e.cooldown));
  else if (e.cooldown) keepCooldown(e.cooldown);
  if (e.lease || e.cooldown) refreshProxies();
  draw();
}

// EventSource can't send a token, so the stream is read by hand.
async function follow() {
  const answer = await fetch("v1/events", { headers: headers() });
  if (!answer.ok) { await get("v1/cooldowns"); throw new Error(answer.statusText); }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const kind = /^event: (.*)$/m.exec(block)?.[1], data = /^data: (.*)$/m.exec(block)?.[1];
      if (kind === "hello") { await list(); await role(); }
      else if (kind && data) apply(kind, JSON.parse(data));
    }
  }
}
async function role() {
  const ready = await (await fetch("readyz")).json();
  $("role").textContent = (ready.ready ? "live" : "not ready: " + ready.reason) + " · " + ready.role + (ready.leader ? " · leader " + ready.leader : "");
}
async function live() {
  for (; ;) {
    try { await follow(); } catch (e) { $("role").textContent = e.message; }
    await new Promise((done) => { wake = done; setTimeout(done, 2000); });
  }
}
let wake = () => {};

const matches = (...texts) => !search || texts.some((t) => t && String(t).toLowerCase().includes(search));
const left = (t) => { const s = Math.max(0, Math.round((t - Date.now()) / 1000)); return s < 90 ? s + " s" : s < 5400 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h"; };
function rows(id, items, cells) {
  const shown = items.slice(0, 500), body = document.createElement("tbody");
  for (const item of shown) {
    const row = body.insertRow();
    for (const cell of cells(item)) {
      const td = row.insertCell();
      if (cell && cell.state) { td.dataset.state = cell.state; td.textContent = cell.state.replace("_", " "); }
      else td.textContent = cell === undefined || cell === "" ? "–" : cell;
    }
  }
  $(id).tBodies[0].replaceWith(body);
  if ($("n-" + id)) $("n-" + id).textContent = shown.length < items.length ? shown.length + " of " + items.length : items.length;
}
function note(p) {
  if (p.mark) return p.mark.mark + (p.mark.by ? " by " + p.mark.by : "") + (p.mark.reason ? ": " + p.mark.reason : "");
  if (p.state === "unhealthy" || p.state === "gone") return p.reason;
  if (p.state === "no_credentials") return "no credentials named " + p.auth;
  return p.blocked_targets ? "blocked by " + p.blocked_targets.join(", ") : "";
}
function draw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    const proxies = [...state.proxies.values()], groups = new Map(), count = (s) => proxies.filter((p) => p.state === s).length;
    for (const p of proxies) {
      const a = p.attributes || {}, key = JSON.stringify([a.provider || "", a.zone || ""]);
      const g = groups.get(key) || groups.set(key, {}).get(key);
      g[p.state] = (g[p.state] || 0) + 1;
    }
    const totals = [["proxies", proxies.length], ["free", count("free")], ["leased", state.leases.size], ["at capacity", count("at_capacity")], ["cooling", count("cooling")], ["unhealthy", count("unhealthy")]];
    $("totals").replaceChildren(...totals.map(([name, n]) => {
      const div = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name; dd.textContent = n; div.append(dt, dd); return div;
    }));
    rows("fleet", [...groups].sort(), ([key, g]) => [...JSON.parse(key), Object.entries(g).sort().map(([s, n]) => n + " " + s.replace("_", " ")).join(", "), Object.values(g).reduce((a, b) => a + b)]);
    rows("proxies", proxies.filter((p) => matches(p.id, p.state, p.exit_ip, note(p), ...Object.values(p.attributes || {}), ...(p.tags || []))).sort((a, b) => a.id < b.id ? -1 : 1),
      (p) => [p.id, { state: p.state }, p.shared_active + " / " + (p.max_leases || "∞"), p.exit_ip, p.attributes?.provider, p.attributes?.zone, note(p)]);
    rows("leases", [...state.leases.values()].filter((l) => matches(l.id, l.proxy, l.target, l.client, l.session, l.exit_ip)).sort((a, b) => a.until - b.until),
      (l) => [l.proxy, l.target, l.client, l.session, l.selector, left(l.until)]);
    rows("cooldowns", [...state.cooldowns.values()].filter((c) => matches(c.exit, c.target)).sort((a, b) => a.until - b.until),
      (c) => [c.exit, c.target || "all", c.strikes, left(c.until)]);
  });
}
$("search").addEventListener("input", (e) => { search = e.target.value.trim().toLowerCase(); draw(); });
$("token").addEventListener("change", (e) => { token = e.target.value.trim(); sessionStorage.setItem("token", token); wake(); });
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && e.target.tagName !== "INPUT") { e.preventDefault(); $("search").focus(); }
  if (e.key === "Escape" && e.target === $("search")) { e.target.value = search = ""; draw(); }
});
setInterval(draw, 1000);
live();
