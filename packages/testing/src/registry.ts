/** A real registry (Debian's docker-registry) for tests, and one that lies. */
import { spawn } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from './ports.ts';
import { run } from './oci.ts';

const START_DEADLINE_MS = 120_000;

export interface TestRegistry extends AsyncDisposable {
  /** `localhost:<port>` */
  host: string;
  /** Puts the image of an OCI layout under `host/name:tag`. */
  push(layout: string, nameAndTag: string): void;
  stop(): Promise<void>;
}

/** A user that `startRegistry` can ask for; the password's bcrypt hash is what `htpasswd -B` would write. */
export const REGISTRY_USER = {
  username: 'user',
  password: 'pass:word "1"',
  hash: '$2b$04$jJiKokvhCEHHCMKZCLJrxOZQimmNXl.yffXoycFmHZDHg0r30FhJu',
};

/** Starts a registry that keeps its data below `dir`; if `guarded`, it wants `REGISTRY_USER`. */
export async function startRegistry(dir: string, guarded = false): Promise<TestRegistry> {
  const port = await freePort();
  await mkdir(path.join(dir, 'data'), { recursive: true });
  if (guarded)
    await writeFile(path.join(dir, 'htpasswd'), `${REGISTRY_USER.username}:${REGISTRY_USER.hash}\n`);
  const config = [
    'version: 0.1',
    'log: {level: error, accesslog: {disabled: true}}',
    `storage: {filesystem: {rootdirectory: ${path.join(dir, 'data')}}}`,
    `http: {addr: "127.0.0.1:${port}"}`,
    ...(guarded ? [`auth: {htpasswd: {realm: test, path: ${path.join(dir, 'htpasswd')}}}`] : []),
  ];
  // By port: several registries may serve what one folder has.
  const configFile = path.join(dir, `config-${port}.yml`);
  await writeFile(configFile, `${config.join('\n')}\n`);
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', '--', 'docker-registry', 'serve', configFile], {
    stdio: 'ignore',
  });
  const ended = new Promise<void>((resolve) => child.once('close', () => resolve()));
  const host = `localhost:${port}`;
  for (const end = Date.now() + START_DEADLINE_MS; ; ) {
    const answer = await fetch(`http://127.0.0.1:${port}/v2/`).catch(() => undefined);
    if (answer) break;
    if (Date.now() > end || child.exitCode !== null) {
      child.kill('SIGKILL');
      throw new Error('docker-registry does not start');
    }
    await sleep(50);
  }
  await rm(configFile);
  const stop = async (): Promise<void> => {
    child.kill('SIGKILL');
    await ended;
  };
  return {
    host,
    push: (layout, nameAndTag) => {
      const creds = guarded ? ['--dest-creds', `${REGISTRY_USER.username}:${REGISTRY_USER.password}`] : [];
      run('skopeo', [
        'copy',
        '-q',
        '--dest-tls-verify=false',
        ...creds,
        `oci:${layout}:image`,
        `docker://${host}/${nameAndTag}`,
      ]);
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

export interface HandmadeRegistry extends AsyncDisposable {
  host: string;
  /** `GET /v2/app/…` paths asked for so far. */
  asked: string[];
}

/** A registry that answers with the responses of `answer`, including those that no honest one would give. */
export async function handmadeRegistry(
  answer: (path: string, request: IncomingMessage, response: ServerResponse) => void,
): Promise<HandmadeRegistry> {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    const url = request.url ?? '';
    if (url === '/v2/') {
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
      return;
    }
    asked.push(url);
    answer(url.replace(/^\/v2\/app\//, ''), request, response);
  });
  server.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  return {
    host: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
