/**
 * A service that speaks the contract as far as the command line asks, over real HTTP and web sockets. Its
 * sandboxes are the machine itself: commands really run, files are really written, paths are paths here.
 */
import { spawn } from 'node:child_process';
import { createReadStream, createWriteStream } from 'node:fs';
import { lstat } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pipeline } from 'node:stream/promises';
import {
  formatSandboxId,
  newUuid,
  parseSandboxId,
  type ProcessStreamClientMessage,
  type ProcessStreamStart,
} from '@releap/contract';
import { type WebSocket, WebSocketServer } from 'ws';
import { expectOperation, readJson, send, sendError, sendPage } from './service-http.ts';
import { evictPath, hostsPath } from './service-hosts.ts';
import { managementPath } from './service-management.ts';
import { keptPath } from './service-kept.ts';
import { forkOf, oneSnapshot, snapshotOf } from './service-snapshots.ts';
import type { TestSandbox, TestService } from './service-state.ts';

export { send, sendForeign } from './service-http.ts';
export type { TestSandbox, TestService } from './service-state.ts';

export const KEY = 'rlp_test';

export async function startService(): Promise<TestService> {
  const server = createServer();
  const sockets = new WebSocketServer({ noServer: true });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const service: TestService = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    sandboxes: [],
    images: [],
    snapshots: [],
    hosts: [],
    forgotten: new Set(),
    management: undefined,
    kept: new Map(),
    calls: [],
    bodies: [],
    logs: new Map(),
    special: new Map(),
    coming: ['booting', 'running'],
    outcomes: new Map(),
    streams: true,
    started: [],
    add: (name, more = {}) => {
      const sandbox = newSandbox(name, more);
      service.sandboxes.unshift(sandbox);
      return sandbox;
    },
    [Symbol.asyncDispose]: async () => {
      for (const client of sockets.clients) client.terminate();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  server.on('request', (request, response) => {
    answer(service, request, response).catch((error: unknown) => {
      if (!response.headersSent) sendError(response, error);
      else response.destroy();
    });
  });
  server.on('upgrade', (request, socket, head) => {
    service.calls.push(`UPGRADE ${request.url}`);
    const refuse = (status: string, body: string): void => {
      socket.end(
        `HTTP/1.1 ${status}\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
      );
    };
    const sandbox = service.sandboxes.find((one) => request.url === `/toolbox/${one.id}/process/stream`);
    if (!service.streams) return refuse('404 Not Found', '<html>no such page</html>');
    if (request.headers.authorization !== `Bearer ${KEY}`)
      return refuse('401 Unauthorized', '{"error":"bad key"}');
    if (!sandbox) return refuse('404 Not Found', '{"error":"sandbox not found"}');
    if (sandbox.status !== 'running')
      return refuse('409 Conflict', `{"error":"sandbox is ${sandbox.status}"}`);
    sockets.handleUpgrade(request, socket, head, (ws) => serveCommand(ws, service));
  });
  return service;
}

function newSandbox(name: string, more: Partial<TestSandbox>): TestSandbox {
  return {
    id: formatSandboxId('local', newUuid()),
    name,
    image_ref: 'busybox',
    status: 'running',
    mode: 'burstable',
    cpu: 0.125,
    vcpus: 2,
    mem_mib: 1024,
    scratch_mib: 512,
    port_map: [],
    error: null,
    region: 'local',
    spot: false,
    spot_evicted_at: null,
    persistent: false,
    created_at: new Date().toISOString(),
    coming: [],
    ...more,
  };
}

async function answer(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const url = new URL(request.url ?? '/', service.url);
  const call = `${request.method} ${url.pathname}`;
  service.calls.push(call);
  expectOperation(request, response, url);
  const special = service.special.get(call);
  if (special && (await special(request, response, url)) !== false) return;
  const [, first = '', second = '', ...rest] = url.pathname.split('/');
  if (first === 'operator' && second === 'hosts') return hostsPath(service, request, response, rest);
  if (first === 'operator' && second === 'vms') return evictPath(service, request, response, rest);
  if (await managementPath(service, request, response, url)) return;
  const key = request.headers.authorization?.replace('Bearer ', '');
  const minted = service.management?.keys.find((one) => one.token === key && one.revoked_at === null);
  if (key !== KEY && minted === undefined) return send(response, 401, { error: 'invalid API key' });
  if (first === 'secrets' || first === 'registries')
    return keptPath(service, request, response, first, second);
  if (first === 'toolbox') return toolbox(service, request, response, url, second, rest.join('/'));
  if (call === 'GET /regions')
    return send(response, 200, [
      {
        id: 'local',
        name: 'Local',
        status: 'active',
        is_default: true,
        toolbox_proxy_url: `${service.url}/toolbox`,
      },
    ]);
  if (call === 'GET /vms') return sendPage(response, url, 'vms', service.sandboxes);
  if (call === 'GET /images') return sendPage(response, url, 'images', service.images);
  if (call === 'GET /snapshots') return sendPage(response, url, 'snapshots', service.snapshots);
  if (first === 'snapshots') return oneSnapshot(service, request, response, second);
  if (call === 'POST /vms') {
    const body = await readJson(request);
    service.bodies.push(body);
    const sandbox = service.add(typeof body['name'] === 'string' ? body['name'] : 'sandbox-00000000', {
      status: 'pending',
      coming: [...service.coming],
    });
    return send(response, 200, {
      vm_id: sandbox.id,
      job_id: newUuid(),
      name: sandbox.name,
      status: 'pending',
      access_token: 'rlpv_x',
    });
  }
  if (call === 'POST /images') {
    const body = await readJson(request);
    service.bodies.push(body);
    return send(response, 200, {
      image_id: newUuid(),
      job_id: newUuid(),
      name: body['name'],
      status: 'pending',
      region: 'local',
    });
  }
  if (first === 'vms' && request.method === 'POST' && (rest[0] === 'fork' || rest[0] === 'snapshots')) {
    const sandbox = service.sandboxes.find((one) => one.id === second);
    if (!sandbox) return send(response, 404, { error: `sandbox "${second}" not found` });
    const body = await readJson(request);
    service.bodies.push(body);
    return rest[0] === 'fork'
      ? forkOf(service, sandbox, body, response)
      : snapshotOf(service, sandbox, body, response);
  }
  if (first === 'vms') return oneSandbox(service, request, response, second, rest[0]);
  return send(response, 404, { error: `no such path ${url.pathname}` });
}

function oneSandbox(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  id: string,
  tail: string | undefined,
): void {
  const uuid = parseSandboxId(id)?.uuid;
  const sandbox = service.sandboxes.find((one) => parseSandboxId(one.id)?.uuid === uuid);
  if (!sandbox) return send(response, 404, { error: `sandbox "${id}" not found` });
  if (tail === 'logs' || tail === 'entrypoint-logs') {
    const kept = service.logs.get(tail);
    if (!kept) return send(response, 404, { error: `sandbox "${id}" has no log` });
    response.setHeader('content-type', 'text/plain');
    response.end(kept.length > 1 ? kept.shift() : kept[0]);
    return;
  }
  if (request.method === 'DELETE') {
    sandbox.status = 'deleting';
    sandbox.coming = ['deleted'];
    return send(response, 200, { vm_id: sandbox.id, status: 'deleting' });
  }
  if (request.method === 'POST' && tail !== undefined) {
    sandbox.status = ({ stop: 'stopping', pause: 'pausing' } as const)[tail] ?? 'booting';
    sandbox.coming = [...(service.outcomes.get(`${tail} ${sandbox.name}`) ?? [])];
    return send(response, 200, { vm_id: sandbox.id, status: sandbox.status });
  }
  const { coming, ...record } = sandbox;
  send(response, 200, record);
  sandbox.status = coming.length > 0 ? (sandbox.coming.shift() ?? record.status) : record.status;
}

async function toolbox(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
  id: string,
  tail: string,
): Promise<void> {
  if (!service.sandboxes.some((one) => one.id === id))
    return send(response, 404, { error: 'sandbox not found' });
  const path = url.searchParams.get('path') ?? '';
  const found = await lstat(path).catch(() => null);
  if (tail === 'files/upload') {
    let bytes = 0;
    await pipeline(
      request,
      async function* (body: AsyncIterable<Buffer>) {
        for await (const chunk of body) {
          bytes += chunk.length;
          yield chunk;
        }
      },
      createWriteStream(path, { mode: Number.parseInt(url.searchParams.get('mode') ?? '644', 8) }),
    );
    return send(response, 200, { path, bytes });
  }
  if (tail === 'process/execute') {
    const body = await readJson(request);
    const child = spawn('/bin/sh', ['-c', String(body['command'])], { stdio: ['ignore', 'pipe', 'pipe'] });
    let result = '';
    child.stdout.on('data', (chunk: Buffer) => (result += chunk.toString()));
    child.stderr.on('data', (chunk: Buffer) => (result += chunk.toString()));
    child.on('close', (exitCode) => send(response, 200, { exitCode, result }));
    return;
  }
  if (found === null) return send(response, 404, { error: `${path} is not there` });
  if (tail === 'files/info') {
    const type = found.isSymbolicLink() ? 'symlink' : found.isDirectory() ? 'directory' : 'file';
    return send(response, 200, {
      name: path,
      isDir: type === 'directory',
      type,
      size: found.size,
      modTime: found.mtime.toISOString(),
      mode: '-rw-r--r--',
      permissions: (found.mode & 0o7777).toString(8).padStart(4, '0'),
      owner: String(found.uid),
      group: String(found.gid),
    });
  }
  await pipeline(createReadStream(path), response);
}

function serveCommand(ws: WebSocket, service: TestService): void {
  let child: ReturnType<typeof spawn> | undefined;
  ws.on('message', (data: Buffer, binary: boolean) => {
    if (binary) {
      child?.stdin?.write(data.subarray(1));
      return;
    }
    const message = JSON.parse(data.toString()) as ProcessStreamClientMessage | ProcessStreamStart;
    if (message.type === 'stdin-end') child?.stdin?.end();
    else if (message.type === 'signal') child?.kill(`SIG${message.signal}` as NodeJS.Signals);
    else if (message.type === 'start') {
      service.started.push(message);
      child = startCommand(ws, message);
    }
  });
  ws.on('close', () => child?.kill('SIGKILL'));
}

function startCommand(ws: WebSocket, start: ProcessStreamStart): ReturnType<typeof spawn> {
  const [command = '/bin/sh', ...args] = start.argv ?? ['/bin/sh', '-c', start.command ?? ''];
  const child = spawn(command, args, { env: { PATH: process.env['PATH'], ...start.env }, cwd: start.cwd });
  if (!start.stdin) child.stdin.end();
  child.stdin.on('error', () => undefined);
  const channels = [
    [1, child.stdout],
    [2, child.stderr],
  ] as const;
  for (const [channel, stream] of channels)
    stream.on('data', (chunk: Buffer) => {
      stream.pause();
      ws.send(Buffer.concat([Buffer.of(channel), chunk]), () => stream.resume());
    });
  const say = (message: object): void => ws.send(JSON.stringify(message));
  const timer =
    start.timeout === undefined ? undefined : setTimeout(() => child.kill('SIGKILL'), start.timeout * 1000);
  let timedOut = false;
  if (start.timeout !== undefined)
    setTimeout(() => (timedOut = child.exitCode === null), start.timeout * 1000 - 1).unref();
  child.on('error', (error) => {
    ws.send(Buffer.concat([Buffer.of(2), Buffer.from(`${error.message}\n`)]));
    say({ type: 'exit', exit_code: 127, timed_out: false, error: error.message });
  });
  child.on('close', (code, signal) => {
    clearTimeout(timer);
    const number = signal === 'SIGKILL' ? 9 : signal === 'SIGINT' ? 2 : 15;
    say({
      type: 'exit',
      exit_code: code ?? 128 + number,
      timed_out: timedOut,
      ...(signal ? { signal } : {}),
    });
    ws.close(1000);
  });
  return child;
}
