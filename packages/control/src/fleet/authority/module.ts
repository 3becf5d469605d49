import { EXPIRY_METRIC, expirySeconds, type HostCertificate } from '@releap/certificates/hosts';
import { internalOperations, operatorOperations } from '@releap/contract';
import type { Logger } from 'pino';
import { gauge } from '../../platform/metrics/scraped.ts';
import { KeysUnavailableError } from '../../platform/encryption/keys.ts';
import type { Module } from '../../platform/module.ts';
import type { HostAuthority } from './host-authority.ts';

const ROOT_RENEWAL_MS = 6 * 3_600_000;

export interface AuthorityModuleOptions {
  /** Of this server. */
  certificates: readonly HostCertificate[];
  hostAuthority: HostAuthority;
  log: Logger;
}

export function authorityModule({ certificates, hostAuthority, log }: AuthorityModuleOptions): Module {
  return {
    name: 'authority',
    metrics(registry) {
      gauge(registry, EXPIRY_METRIC.name, EXPIRY_METRIC.help, () => expirySeconds(...certificates));
    },
    routes({ runner, gateway, operator }) {
      operator.operation(operatorOperations.getHostAuthority, async () => ({
        fingerprint: await hostAuthority.fingerprint(),
        roots: await hostAuthority.trusted(),
      }));
      runner.operation(internalOperations.issueRunnerHostCertificate, ({ body, runner: { runnerId } }) =>
        hostAuthority.issue(body.request, { role: 'runner', id: runnerId }),
      );
      gateway.operation(internalOperations.issueGatewayCertificate, ({ body }) =>
        hostAuthority.issue(body.request, { role: 'gateway', id: body.gateway_id }),
      );
    },
    tasks: [
      {
        name: 'host-root-renewal',
        everyMs: ROOT_RENEWAL_MS,
        leased: true,
        async run() {
          const done = await hostAuthority.renew().catch((error: unknown) => {
            // Where no key is available no host gets a certificate; the key provider has logged it.
            if (!(error instanceof KeysUnavailableError)) throw error;
            return undefined;
          });
          if (done === 'announced')
            log.info(
              'hosts trust the next root of their certificates from now on; in 7 days it replaces the present one',
            );
          if (done === 'replaced') log.info('the root of the certificates of hosts was replaced');
        },
      },
    ],
  };
}
