// The status page: lists once, then follows the stream of events.
const $ = (id) => document.getElementById(id);
const state = { proxies: new Map(), leases: new Map(), cooldowns: new Map(), targets: new Map() };
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
  const [proxies, leases, cooldowns, targets] = await Promise.all([all("v1/proxies", "proxies"), all("v1/leases", "leases"), all("v1/cooldowns", "cooldowns"),
    all("v1/targets", "targets").catch(() => [])]); // not known yet: its events follow
  for (const map of Object.values(state)) map.clear();
  for (const p of proxies) state.proxies.set(p.id, p);
  for (const t of targets) state.targets.set(t.id, t);
  leases.forEach(keepLease);
  cooldowns.forEach(keepCooldown);
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
  if (kind === "target.removed") state.targets.delete(e.target.id);
  else if (e.target) state.targets.set(e.target.id, e.target);
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
function say(ok, text) {
  $("role").textContent = text;
  $("role").dataset.ok = ok;
}
async function role() {
  const ready = await (await fetch("readyz")).json();
  say(ready.ready, (ready.ready ? "live" : "not ready: " + ready.reason) + " · " + ready.role + (ready.leader ? " · " + ready.leader : ""));
}
async function live() {
  for (; ;) {
    try { await follow(); } catch (e) { say(false, e.message); }
    await new Promise((done) => { wake = done; setTimeout(done, 2000); });
  }
}
let wake = () => {};

// What is shown.
const tones = { free: "good", ready: "good", at_capacity: "busy", exit_full: "busy", cooling: "warm", partly_ready: "warm", frozen: "held", draining: "leaving", unhealthy: "bad", no_credentials: "bad", not_ready: "bad", silent: "bad" };
const words = (text) => text.replaceAll("_", " ");
const matches = (...texts) => !search || texts.some((t) => t && String(t).toLowerCase().includes(search));
const left = (t) => { const s = Math.max(0, Math.round((t - Date.now()) / 1000)); return s < 90 ? s + " s" : s < 5400 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h"; };
function make(name, text, cls) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  return element;
}
// bar shows parts of a whole: pairs of a tone and a number.
function bar(parts) {
  const box = make("div", undefined, "bar");
  for (const [tone, n] of parts) {
    const piece = make("i");
    if (tone) piece.dataset.tone = tone; else piece.hidden = !n;
    if (!tone) piece.style.background = "transparent";
    piece.style.flex = n + " 0 0";
    box.append(piece);
  }
  return box;
}
function fill(td, cell) {
  if (cell?.state) {
    td.dataset.tone = tones[cell.state] || "none";
    td.textContent = words(cell.state);
  } else if (cell?.nodes) td.append(...cell.nodes);
  else if (cell === undefined || cell === "") { td.textContent = "–"; td.classList.add("none"); }
  else td.textContent = cell;
  if (cell?.below) td.append(make("small", cell.below));
}
function rows(id, items, empty, cells) {
  const shown = items.slice(0, 500), body = make("tbody"), heads = [...$(id).tHead.rows[0].cells];
  for (const item of shown) {
    const row = body.insertRow();
    cells(item).forEach((cell, i) => {
      const td = row.insertCell();
      td.dataset.label = heads[i].textContent;
      if (heads[i].className) td.className = heads[i].className;
      if (["note", "states"].includes(heads[i].textContent)) td.classList.add("text");
      fill(td, cell);
    });
  }
  if (!items.length) {
    const td = body.insertRow().insertCell();
    td.colSpan = heads.length;
    td.className = "empty";
    td.textContent = search ? "Nothing here matches “" + search + "”." : empty;
  }
  $(id).tBodies[0].replaceWith(body);
  if ($("n-" + id)) $("n-" + id).textContent = shown.length < items.length ? shown.length + " of " + items.length : items.length;
}
function note(p) {
  if (p.mark) return p.mark.mark + (p.mark.by ? " by " + p.mark.by : "") + (p.mark.reason ? ": " + p.mark.reason : "");
  if (p.state === "unhealthy" || p.state === "gone") return p.reason;
  if (p.state === "no_credentials") return "no credentials named " + p.auth;
  if (p.state === "exit_full") return "others have filled its exit address";
  return p.blocked_targets ? "blocked by " + p.blocked_targets.join(", ") : "";
}

// One target is seen by several nodes; "local" is each node itself.
function targetGroups() {
  const groups = new Map();
  for (const t of state.targets.values()) {
    const key = JSON.stringify([t.provider, t.target, t.target === "local" ? t.node : ""]);
    groups.set(key, [...(groups.get(key) || []), t]);
  }
  return [...groups.values()].map((views) => {
    const ready = views.filter((t) => t.state === "ready"), first = views[0];
    const worst = views.find((t) => t.state === "not_ready") || views.find((t) => t.state === "silent");
    const name = first.provider + " / " + (first.target === "local" ? first.node : first.target);
    return { name, type: first.type, views, ready, worst, facts: (ready[0] || first).facts || {}, state: !worst ? "ready" : ready.length ? "partly_ready" : worst.state };
  }).sort((a, b) => (a.state === "ready") - (b.state === "ready") || (a.name < b.name ? -1 : 1));
}
function least(group, fact) {
  const values = (group.ready.length ? group.ready : group.views).map((t) => t.facts?.[fact]).filter((v) => v !== undefined).map(Number);
  return values.length ? Math.min(...values) : undefined;
}
const size = (mib) => (mib >= 10240 ? Math.floor(mib / 1024) + " GiB" : mib + " MiB");
function free(mib, total, below) {
  if (mib === undefined) return below ? { nodes: ["–"], below } : "";
  const text = size(mib) + (total ? " of " + size(total) : "");
  const tone = !total ? "" : mib / total < 0.1 ? "bad" : mib / total < 0.25 ? "warm" : "good";
  return { nodes: total ? [text, bar([[tone, mib], ["", Math.max(0, total - mib)]])] : [text], below };
}
function targetCells(g) {
  const pool = least(g, "pool_available_gib"), disk = least(g, "state_dir_available_mib"), gib = Number(g.facts.pool_capacity_gib) * 1024 || 0;
  const quota = ["instances_free", "cpus_free", "addresses_free"].filter((f) => least(g, f) !== undefined).map((f) => least(g, f) + " " + f.replace("_free", " free"));
  const bad = g.views.filter((t) => t.state !== "ready").map((t) => t.node).sort();
  const names = bad.slice(0, 3).join(", ") + (bad.length > 3 ? " …" : "");
  const who = g.worst && g.ready.length ? "from " + names + " (" + bad.length + " of " + g.views.length + " nodes): " : g.worst ? "" : g.views.length > 1 ? g.views.length + " nodes agree" : "";
  const why = g.worst ? who + g.worst.reason + (g.worst.advice ? ": " + g.worst.advice : "") : [who, ...quota].filter(Boolean).join(", ");
  const poolState = g.facts.pool_state && g.facts.pool_state !== "running" ? "pool " + g.facts.pool_state : "";
  return [{ nodes: [g.name], below: g.type }, { state: g.state }, free(pool === undefined ? disk : pool * 1024, gib, poolState),
    free(least(g, "memory_available_mib"), Number(g.facts.memory_total_mib) || 0), why];
}

function draw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    const proxies = [...state.proxies.values()], groups = new Map(), count = (...s) => proxies.filter((p) => s.includes(p.state)).length;
    for (const p of proxies) {
      const a = p.attributes || {}, key = JSON.stringify([a.provider || "", a.zone || ""]);
      const g = groups.get(key) || groups.set(key, {}).get(key);
      g[p.state] = (g[p.state] || 0) + 1;
    }
    const totals = [["proxies", proxies.length, ""], ["free", count("free"), "good"], ["leased", state.leases.size, "busy"], ["at capacity", count("at_capacity", "exit_full"), "busy"],
      ["cooling", count("cooling"), "warm"], ["unhealthy", count("unhealthy", "no_credentials"), "bad"]];
    $("totals").replaceChildren(...totals.map(([name, n, tone]) => {
      const div = make("div"), dd = make("dd", n);
      if (!n) dd.dataset.tone = "none"; else if (tone) dd.dataset.tone = tone;
      div.append(make("dt", name), dd);
      return div;
    }));
    rows("fleet", [...groups].sort(), "No proxies are registered in Consul yet.", ([key, g]) => {
      const states = Object.entries(g).sort();
      const parts = states.map(([s, n]) => { const part = make("span", n + " " + words(s), "part"); part.dataset.tone = tones[s] || "none"; return part; });
      return [...JSON.parse(key), Object.values(g).reduce((a, b) => a + b), { nodes: [...parts, bar(states.map(([s, n]) => [tones[s] || "none", n]))] }];
    });
    rows("targets", targetGroups().filter((g) => matches(g.name, g.type, words(g.state), ...g.views.flatMap((t) => [t.node, t.reason]))), "No target is registered in Consul yet.", targetCells);
    rows("proxies", proxies.filter((p) => matches(p.id, words(p.state), p.exit_ip, note(p), ...Object.values(p.attributes || {}), ...(p.tags || []))).sort((a, b) => a.id < b.id ? -1 : 1),
      "No proxies are registered in Consul yet.", (p) => [p.id, { state: p.state }, p.shared_active + " / " + (p.max_leases || "∞"), p.exit_ip, p.attributes?.provider, p.attributes?.zone, note(p)]);
    rows("leases", [...state.leases.values()].filter((l) => matches(l.id, l.proxy, l.target, l.client, l.session, l.exit_ip)).sort((a, b) => a.until - b.until),
      "No leases are held.", (l) => [l.proxy, l.target, l.client, l.session, l.selector, left(l.until)]);
    rows("cooldowns", [...state.cooldowns.values()].filter((c) => matches(c.exit, c.target)).sort((a, b) => a.until - b.until),
      "Nothing cools.", (c) => [c.exit, c.target || "all", c.strikes, left(c.until)]);
  });
}
$("search").addEventListener("input", (e) => { search = e.target.value.trim().toLowerCase(); draw(); });
$("token").addEventListener("change", (e) => { token = e.target.value.trim(); sessionStorage.setItem("token", token); wake(); });
// "/" goes to the search, Enter from there to the first table that has something,
// Escape clears the search and then leaves it.
document.addEventListener("keydown", (e) => {
  const field = $("search");
  if (e.key === "/" && e.target.tagName !== "INPUT" && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); field.focus(); field.select(); }
  if (e.target !== field) return;
  if (e.key === "Escape" && field.value) { e.preventDefault(); field.value = search = ""; draw(); }
  else if (e.key === "Escape") field.blur();
  else if (e.key === "Enter") {
    e.preventDefault();
    const found = ["proxies", "leases", "cooldowns", "targets"].find((id) => !$(id).querySelector("td.empty"));
    if (found) $("r-" + found).focus();
  }
});
setInterval(draw, 1000);
live();
