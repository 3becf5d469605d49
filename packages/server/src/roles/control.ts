import { CONTROL_LIMITS, fileKeys, startControl } from '@releap/control';
import { writeBootstrap } from '../bootstrap.ts';
import { urlHost } from '../config/config.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The control plane: REST API, scheduler, link to the runners. */
export async function controlRole({
  config,
  internalToken,
  log,
  supervised,
}: RoleContext): Promise<RunningRole> {
  const { databaseUrl, host, port } = config;
  if (databaseUrl === undefined) throw new Error('the role control needs DATABASE_URL');
  const baseUrl = config.publicUrl ?? `http://${urlHost(host)}:${port}`;
  const control = await startControl({
    databaseUrl,
    databaseConnections: config.databaseConnections,
    listen: { host, port },
    internalToken,
    region: { ...config.region, toolboxProxyUrl: config.toolboxUrl },
    builtinImages: config.builtinImages,
    keys: fileKeys(config.keyFile, log),
    limits: {
      ...CONTROL_LIMITS,
      createQueue: config.createQueue,
      overcommit: { ...config.overcommit },
    },
    publicUrl: baseUrl,
    log,
  });
  if (supervised) {
    const image = config.builtinImages[0] ?? 'busybox';
    await writeBootstrap({ home: config.home, databaseUrl, baseUrl, image, log });
  }
  const close = (): Promise<void> => control.close();
  return { facts: { url: baseUrl }, stop: close, letGo: close };
}
