/**
 * Metrics of a gateway: on a Unix socket that only root can open, and for other machines on a port of its own. docs/observability.md lists them.
 */
import { timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdir, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname } from 'node:path';
import type { MaintainedCertificate } from '@releap/certificates';
import { EXPIRY_METRIC, expirySeconds } from '@releap/certificates/hosts';
import { tokenDigest } from '@releap/contract';
import type { Gateway } from '@releap/gateway';
import { Counter, Gauge, type Registry } from 'prom-client';

/** Scrapers are few, and send little. */
const CONNECTIONS = 32;
const HEADERS_MS = 10_000;
const HEADER_BYTES = 8_192;

/** Calls of functions through this gateway. */
export function functionMetrics(registry: Registry, load: Gateway['functions']): void {
  const add = (
    name: string,
    help: string,
    set: (gauge: Gauge, now: ReturnType<typeof load>) => void,
  ): void => {
    registry.registerMetric(
      new Gauge({
        name,
        help,
        labelNames: name.endsWith('instances') ? ['state'] : [],
        registers: [],
        collect() {
          set(this, load());
        },
      }),
    );
  };
  add('releap_function_calls_waiting', 'Calls of functions that wait for an instance', (gauge, { waiting }) =>
    gauge.set(waiting),
  );
  add('releap_function_calls', 'Calls of functions that handlers serve', (gauge, { served }) =>
    gauge.set(served),
  );
  add('releap_function_instances', 'Instances of functions that this gateway has', (gauge, { instances }) => {
    for (const [state, count] of Object.entries(instances)) gauge.set({ state }, count);
  });
}

export function certificateMetrics(
  registry: Registry,
  certificate: Pick<MaintainedCertificate, 'notAfter' | 'renewals'>,
): void {
  const expiry = new Gauge({
    name: 'releap_preview_certificate_expiry_timestamp_seconds',
    help: 'When the certificate of previews expires; 0 without one',
    registers: [],
    collect() {
      this.set((certificate.notAfter?.getTime() ?? 0) / 1000);
    },
  });
  const renewals = new Counter({
    name: 'releap_preview_certificate_renewals_total',
    help: 'Attempts at a new certificate of previews',
    labelNames: ['outcome'],
    registers: [],
    collect() {
      this.reset();
      for (const [outcome, count] of Object.entries(certificate.renewals)) this.inc({ outcome }, count);
    },
  });
  registry.registerMetric(expiry);
  registry.registerMetric(renewals);
}

export function hostCertificateMetric(registry: Registry, certificate: Gateway['certificate']): void {
  registry.registerMetric(
    new Gauge({
      ...EXPIRY_METRIC,
      registers: [],
      collect() {
        this.set(expirySeconds(certificate));
      },
    }),
  );
}

/** Serves `GET /metrics` to root of this machine. @param socketPath one of an earlier process is replaced */
export async function serveMetrics(socketPath: string, registry: Registry): Promise<AsyncDisposable> {
  const server = createServer((request, response) => void answer(registry, request, response));
  await mkdir(dirname(socketPath), { recursive: true, mode: 0o700 });
  await rm(socketPath, { force: true });
  server.listen(socketPath);
  await once(server, 'listening');
  await chmod(socketPath, 0o600);
  return {
    async [Symbol.asyncDispose]() {
      end(server);
      await rm(socketPath, { force: true });
    },
  };
}

/** The same to other machines. @param credential what they must send as bearer token; read for each request */
export async function serveMetricsToOthers(
  listen: { host: string; port: number },
  credential: () => Promise<string>,
  registry: Registry,
): Promise<AsyncDisposable & { port: number }> {
  const isAllowed = async ({ headers }: IncomingMessage): Promise<boolean> =>
    timingSafeEqual(tokenDigest(headers.authorization ?? ''), tokenDigest(`Bearer ${await credential()}`));
  const server = createServer(
    { headersTimeout: HEADERS_MS, maxHeaderSize: HEADER_BYTES },
    (request, response) => {
      isAllowed(request).then(
        (allowed) => (allowed ? answer(registry, request, response) : void response.writeHead(401).end()),
        () => response.writeHead(503).end(),
      );
    },
  );
  server.maxConnections = CONNECTIONS;
  server.listen(listen);
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: () => Promise.resolve(end(server)),
  };
}

async function answer(registry: Registry, { url }: IncomingMessage, response: ServerResponse): Promise<void> {
  if (url !== '/metrics') return void response.writeHead(404).end();
  await registry.metrics().then(
    (text) => response.setHeader('content-type', registry.contentType).end(text),
    () => response.writeHead(500).end(),
  );
}

function end(server: Server): void {
  server.close();
  server.closeAllConnections();
}
