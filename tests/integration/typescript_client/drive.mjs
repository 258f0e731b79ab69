// Drives the workspace server with an official TypeScript SDK and prints what it saw as one JSON object.
// Usage: node drive.mjs <v1 | legacy | auto | 2026-07-28> <workspace> <command> <argument>...

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { setImmediate } from "node:timers/promises";

const [mode, workspace, command, ...args] = process.argv.slice(2);
const identity = { name: "typescript", version: "1" };

async function connect() {
  if (mode === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const client = new Client(identity);
    await client.connect(new StdioClientTransport({ command, args }));
    return client;
  }
  const { Client } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const negotiation = mode === "legacy" || mode === "auto" ? mode : { pin: mode };
  const client = new Client(identity, { versionNegotiation: { mode: negotiation } });
  await client.connect(new StdioClientTransport({ command, args }));
  return client;
}

// The first generation takes a result schema between the arguments and the options, the second does not.
function call(client, name, input, options = {}) {
  const params = { name, arguments: input };
  return mode === "v1" ? client.callTool(params, undefined, options) : client.callTool(params, options);
}

async function until(isSo) {
  while (!isSo()) await setImmediate();
}

async function watchProgress(client) {
  const shown = [];
  const onprogress = ({ message }) => {
    shown.push(message);
    if (message === "first\n") writeFileSync(`${workspace}/gate`, "");
  };
  const input = { command: "echo first; until [ -e gate ]; do sleep 0.01; done; echo last" };
  await call(client, "execute_command", input, { onprogress });
  return shown;
}

async function cancel(client) {
  const pidFile = `${workspace}/pid`;
  const controller = new AbortController();
  const input = { command: "setsid sh -c 'echo $$ > pid; exec sleep 60' & sleep 60" };
  const running = call(client, "execute_command", input, { signal: controller.signal }).then(
    () => "answered",
    () => "cancelled",
  );
  await until(() => existsSync(pidFile) && readFileSync(pidFile, "utf8").endsWith("\n"));
  const pid = readFileSync(pidFile, "utf8").trim();
  controller.abort();
  const outcome = await running;
  await until(() => !existsSync(`/proc/${pid}`));
  return outcome;
}

const client = await connect();
const seen = {
  server: client.getServerVersion()?.name,
  version: client.getNegotiatedProtocolVersion?.() ?? null,
  tools: (await client.listTools()).tools.map((tool) => tool.name),
  written: (await call(client, "write_file", { path: "a/b.txt", content: "☃\n" })).content[0].text,
  read: (await call(client, "read_file", { path: "a/b.txt" })).content[0].text,
  refused: (await call(client, "read_file", { path: "../x" })).isError,
  shown: await watchProgress(client),
  cancelled: await cancel(client),
  after: (await call(client, "execute_command", { command: "echo on" })).content[0].text,
};
await client.close();
process.stdout.write(JSON.stringify(seen));
