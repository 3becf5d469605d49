/** Metrics of the gateway of this machine, on a Unix socket that only root can open. docs/observability.md lists them. */
import { once } from 'node:events';
import { chmod, mkdir, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { dirname } from 'node:path';
import type { MaintainedCertificate } from '@releap/certificates';
import { EXPIRY_METRIC, expirySeconds } from '@releap/certificates/hosts';
import type { Gateway } from '@releap/gateway';
import { Counter, Gauge, type Registry } from 'prom-client';

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

/** Serves `GET /metrics`. @param socketPath one of an earlier process is replaced */
export async function serveMetrics(socketPath: string, registry: Registry): Promise<AsyncDisposable> {
  const server = createServer((request, response) => {
    if (request.url !== '/metrics') {
      response.writeHead(404).end();
      return;
    }
    registry.metrics().then(
      (text) => response.setHeader('content-type', registry.contentType).end(text),
      () => response.writeHead(500).end(),
    );
  });
  await mkdir(dirname(socketPath), { recursive: true, mode: 0o700 });
  await rm(socketPath, { force: true });
  server.listen(socketPath);
  await once(server, 'listening');
  await chmod(socketPath, 0o600);
  return {
    async [Symbol.asyncDispose]() {
      server.close();
      server.closeAllConnections();
      await rm(socketPath, { force: true });
    },
  };
}
