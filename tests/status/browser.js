// Looks at a job's page with a real browser: browser.js COMMANDS.json, a list of steps that
// test_page.py writes; prints a JSON line for each. Steps: open, shot, axe, text, click, press, wait, perfetto, close.
const fs = require("fs");
const path = require("path");
const modules = path.join(process.env.MUSTER_NODE, "node_modules");
const { chromium } = require(path.join(modules, "playwright-core"));
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const readline = require("readline");

(async () => {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: FLAGS });
  const pages = new Map(), errors = [];
  const steps = {
    async open({ name, url, width, height, scheme, scripts }) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme,
        javaScriptEnabled: scripts !== false, bypassCSP: false });
      const page = await context.newPage();
      page.on("pageerror", (e) => errors.push(`${name}: ${e.message}`));
      page.on("console", (m) => { if (m.type() === "error" && !/Failed to load resource|ERR_/.test(m.text())) errors.push(`${name}: ${m.text()}`); });
      page.on("dialog", (d) => { errors.push(`${name}: dialog ${d.message()}`); d.dismiss(); });
      page.on("request", (r) => { if (!r.url().startsWith("data:") && new URL(r.url()).host !== new URL(url).host) errors.push(`${name}: asks ${r.url()}`); });
      await page.goto(url, { waitUntil: "domcontentloaded" });
      pages.set(name, page);
    },
    async shot({ name, file }) { await pages.get(name).screenshot({ path: file, fullPage: true }); },
    async text({ name, selector }) { return pages.get(name).locator(selector).allInnerTexts(); },
    async wait({ name, selector, contains, patience }) {
      await pages.get(name).waitForFunction(([s, t]) => [...document.querySelectorAll(s)].some((e) => e.textContent.includes(t)),
        [selector, contains || ""], { timeout: patience || 30000 });
    },
    async click({ name, selector }) { await pages.get(name).locator(selector).first().click(); },
    async press({ name, selector, keys }) { for (const k of keys) await pages.get(name).locator(selector).first().press(k); },
    async drag({ name, selector }) {
      const box = await pages.get(name).locator(selector).first().boundingBox(), m = pages.get(name).mouse;
      await m.move(box.x + box.width * .5, box.y + 30);
      await m.down();
      await m.move(box.x + box.width * .7, box.y + 30, { steps: 4 });
      await m.up();
    },
    async sideways({ name }) { return pages.get(name).evaluate(() => document.documentElement.scrollWidth - innerWidth); },
    // axe-core is put in past the page's policy, as a tool of the browser would be.
    async axe({ name }) {
      const page = pages.get(name);
      const source = fs.readFileSync(path.join(modules, "axe-core", "axe.min.js"), "utf8");
      const session = await page.context().newCDPSession(page);
      await session.send("Runtime.evaluate", { expression: source });
      const r = await session.send("Runtime.evaluate", { awaitPromise: true, returnByValue: true,
        expression: "axe.run().then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.target + ' ' + n.failureSummary).slice(0, 3)))" });
      return r.result.value;
    },
    // Opens a trace in Perfetto's own page, whose files lie in the folder `ui`, and asks its trace processor what
    // it made of it. Nothing is asked of the network.
    async perfetto({ ui, trace, file }) {
      const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
      await context.route(() => true, (route) => {
        const at = new URL(route.request().url()), found = path.join(ui, at.pathname === "/" ? "index.html" : at.pathname);
        return at.host === "127.0.0.1" && fs.existsSync(found) ? route.fulfill({ path: found }) : route.abort();
      });
      const page = await context.newPage();
      page.on("pageerror", (e) => errors.push(`Perfetto: ${e.message}`));
      await page.goto("http://127.0.0.1/", { waitUntil: "domcontentloaded" });
      await page.waitForFunction(() => self.app && self.app.openTraceFromBuffer, null, { timeout: 120000 });
      await page.evaluate((text) => { app.openTraceFromBuffer({ title: "job", buffer: new TextEncoder().encode(text).buffer }); }, trace);
      await page.waitForFunction(() => app.trace && !app.isLoadingTrace, null, { timeout: 120000 });
      const ask = (sql, columns) => page.evaluate(async ([sql, columns]) => {
        const rows = [];
        for (const it = (await app.trace.engine.query(sql)).iter({}); it.valid(); it.next())
          rows.push(columns.map((c) => { const v = it.get(c); return typeof v === "bigint" ? Number(v) : v; }));
        return rows;
      }, [sql, columns]);
      const out = {
        slices: await ask("select name, ts / 1000 as us, dur / 1000 as long from slice order by ts, name", ["name", "us", "long"]),
        processes: await ask("select name from process where name is not null order by name", ["name"]),
        problems: await ask("select name, value from stats where value > 0 and severity in ('error', 'data_loss')", ["name", "value"]),
      };
      await page.screenshot({ path: file });
      await context.close();
      return out;
    },
    async close({ name }) { await pages.get(name).context().close(); pages.delete(name); },
    async errors() { return errors.splice(0); },
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const step = JSON.parse(line);
    let out;
    try { out = { ok: (await steps[step.do](step)) ?? null }; } catch (e) { out = { error: String(e.message || e) }; }
    process.stdout.write(JSON.stringify(out) + "\n");
  }
  await browser.close();
})();
