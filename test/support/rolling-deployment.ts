/** Two control servers, two gateways and two hosts behind balancers, on this machine, each a process of its own. */
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { once } from 'node:events';
import { ensureBootstrap } from '@releap/control';
import { openDatabase } from '@releap/database';
import { eventually } from '@releap/testing/eventually';
import { quiet } from '@releap/testing/logging';
import { freePort } from '@releap/testing/ports';
import { createDatabase, startTestPostgres } from '@releap/testing/postgres-instance';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { Balancer } from './balancer.ts';
import type { Installation } from './previous-version.ts';
import { Part, PATIENCE_MS } from './rolling-parts.ts';

const NAMES = ['A', 'B'] as const;
const secret = (): string => randomBytes(32).toString('base64url');

export interface Host {
  id: string;
  status: string;
  ready: boolean;
  facts: { vmm: string };
}

export interface Deployment extends AsyncDisposable {
  parts: Record<'controls' | 'gateways' | 'runners', Part[]>;
  /** Addresses of single servers, in the order of `parts`. */
  controlPorts: number[];
  gatewayPorts: number[];
  /** Of the balancers that clients use. */
  api: Balancer;
  toolbox: Balancer;
  previews: Balancer;
  balancers: Balancer[];
  key: string;
  hosts(): Promise<Host[]>;
}

export async function startDeployment(folder: string, installation: Installation): Promise<Deployment> {
  await using cleanup = new AsyncDisposableStack();
  const postgres = cleanup.use(await startTestPostgres());
  const databaseUrl = await createDatabase(postgres.url('postgres'), 'rolling', { empty: true });
  const ports = async (): Promise<number[]> => [await freePort(), await freePort()];
  const [controlPorts, gatewayBases, runnerPorts] = [await ports(), await ports(), await ports()];
  const gatewayPorts = gatewayBases.map((port) => port + 1);
  const controlProbes = controlPorts.map((port) => `http://127.0.0.1:${port}/readyz`);
  // Gateways of the previous version have no /readyz.
  const gatewayProbes = gatewayPorts.map((port) => `http://127.0.0.1:${port}/healthz`);
  const balance = async (
    bases: readonly number[],
    offset: number,
    probes: readonly string[],
  ): Promise<Balancer> => {
    const backends = bases.map((port, at) => ({ port: port + offset, probe: probes[at] ?? '' }));
    return cleanup.use(await Balancer.start(await freePort(), backends));
  };
  const api = await balance(controlPorts, 0, controlProbes);
  const internal = await balance(controlPorts, 2, controlProbes);
  const toolbox = await balance(gatewayBases, 1, gatewayProbes);
  const previews = await balance(gatewayBases, 5, gatewayProbes);
  const operatorToken = secret();
  const shared = {
    RELEAP_GATEWAY_TOKEN: secret(),
    RELEAP_JOIN_TOKEN: secret(),
    RELEAP_CONTROL_URL: `http://127.0.0.1:${internal.port}`,
    RELEAP_PREVIEW_URL: `http://localhost:${previews.port}`,
    RELEAP_TOOLBOX_URL: `http://127.0.0.1:${toolbox.port}`,
  };
  const controls = controlPorts.map(
    (port, at) =>
      new Part(
        `control ${NAMES[at]}`,
        'control',
        {
          ...shared,
          RELEAP_HOME: join(folder, `control-${at}`),
          RELEAP_PORT: String(port),
          RELEAP_PUBLIC_URL: `http://127.0.0.1:${api.port}`,
          RELEAP_OPERATOR_TOKEN: operatorToken,
          RELEAP_METRICS_TOKEN: secret(),
          RELEAP_DATABASE_CONNECTIONS: '8',
          DATABASE_URL: databaseUrl,
          RELEAP_STORE: join(folder, 'store'),
          RELEAP_KEY_FILE: join(folder, 'keys.json'),
        },
        controlProbes[at] ?? '',
      ),
  );
  const gateways = gatewayBases.map(
    (port, at) =>
      new Part(
        `gateway ${NAMES[at]}`,
        'gateway',
        { ...shared, RELEAP_HOME: join(folder, `gateway-${at}`), RELEAP_PORT: String(port) },
        gatewayProbes[at] ?? '',
      ),
  );
  const hosts = async (): Promise<Host[]> => {
    const answer = await fetch(`http://127.0.0.1:${internal.port}/operator/hosts`, {
      headers: { authorization: `Bearer ${operatorToken}`, connection: 'close' },
    });
    return ((await answer.json()) as { hosts: Host[] }).hosts;
  };
  const runners = runnerPorts.map((port, at) => {
    const socketPath = join(folder, `runner-${at}`, 'run/runner.sock');
    return new Part(
      `runner ${at + 1}`,
      'runner',
      {
        ...shared,
        RELEAP_HOME: join(folder, `runner-${at}`),
        RELEAP_CACHE: TEST_CACHE,
        RELEAP_PORT: String(port),
        RELEAP_DATA_HOST: '127.0.0.1',
        RELEAP_BUILDS: '0',
      },
      async () => {
        // Its own socket answers only while it runs: the control plane may still count the one before as ready.
        const request = httpRequest({ socketPath, path: '/metrics' }).end();
        const [answer] = (await once(request, 'response')) as [IncomingMessage];
        answer.resume();
        const id = (await readFile(join(folder, `runner-${at}`, 'runner/id'), 'utf8')).trim();
        return (await hosts()).some((host) => host.ready && host.id === id);
      },
    );
  });
  const all = [...controls, ...gateways, ...runners];
  cleanup.defer(async () => {
    for (const part of all.toReversed()) await part.end();
  });
  for (const part of controls) await part.start(installation);
  const database = openDatabase({ url: databaseUrl, log: quiet, connections: 1 });
  const { apiKey } = await ensureBootstrap(database, { keyName: 'default' });
  await database.close();
  await Promise.all([...gateways, ...runners].map((part) => part.start(installation)));
  await eventually(
    'both hosts are ready',
    async () => (await hosts()).filter((host) => host.ready).length === 2,
    PATIENCE_MS,
  );
  const owned = cleanup.move();
  return {
    parts: { controls, gateways, runners },
    controlPorts,
    gatewayPorts,
    api,
    toolbox,
    previews,
    balancers: [api, internal, toolbox, previews],
    key: apiKey,
    hosts,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
