/**
 * The service that end-to-end files share: those that neither crash it nor need settings of their own. `npm test` starts
 * one, runs these files one after the other, and stops it; a file that is run alone starts its own.
 */
import { Service } from './service.ts';

const VARIABLE = 'RELEAP_TEST_SERVICE';

/**
 * Everything listens on every address: what keeps guests out is the network, not where the service listens. Registries of
 * tests are on this machine.
 */
const ENVIRONMENT = {
  RELEAP_HOST: '0.0.0.0',
  RELEAP_PLAIN_HTTP: '1',
  RELEAP_PREVIEW_DOMAIN: 'localhost',
  RELEAP_REGISTRY_PRIVATE_HOSTS: 'loopback',
  RELEAP_BUILTIN_IMAGES: process.env['RELEAP_BUILTIN_IMAGES'] ?? 'busybox,debian',
  RELEAP_STORE_PRIVATE_HOSTS: 'loopback',
};

/** Starts the service of a run, and names it to the files that are run afterwards. */
export async function startSharedService(): Promise<Service> {
  const service = await Service.start(ENVIRONMENT);
  process.env[VARIABLE] = JSON.stringify({ home: service.home, port: service.port });
  return service;
}

/** The service of this run, without a sandbox; or one of this file's own. Dispose of it in either case. */
export async function sharedService(): Promise<Service> {
  const shared = process.env[VARIABLE];
  if (shared === undefined) return await Service.start(ENVIRONMENT);
  const { home, port } = JSON.parse(shared) as { home: string; port: number };
  const service = await Service.attach(home, port);
  await removeAllSandboxes(service);
  return service;
}

/** Of the project that files share: the next file begins without any. */
async function removeAllSandboxes(service: Service): Promise<void> {
  const list = async () => (await service.call<{ vms: { id: string }[] }>('GET', '/vms')).body.vms;
  for (const { id } of await list()) await service.remove(id);
}
