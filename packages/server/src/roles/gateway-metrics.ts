/** Metrics of the gateway of this machine, on a Unix socket that only root can open. docs/observability.md lists them. */
import { once } from 'node:events';
import { chmod, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { MaintainedCertificate } from '@releap/certificates';
import { Counter, Gauge, Registry } from 'prom-client';

export function certificateMetrics(
  certificate: Pick<MaintainedCertificate, 'notAfter' | 'renewals'>,
): Registry {
  const registry = new Registry();
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
  return registry;
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
