/** Mounts of sandboxes that run. The row is written first: it is what the host asks for, and what later starts mount. */
import {
  checkMountPath,
  conflict,
  notFound,
  operations,
  quote,
  type GuestStore,
  type StoreMounted,
} from '@releap/contract';
import { OBJECT_STORES_CAPABILITY } from '@releap/contract/runner';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import { MADE_AFTER_START } from '../scheduler/placement.ts';
import { hostOf, type HostOfSandbox } from './host-of.ts';
import {
  addMount,
  guestStores,
  listMounts,
  pathTaken,
  removeMount,
  resolveMount,
} from '../../storage/object-stores/mounts.ts';

/** Longer than the host waits for the guest. */
const HOST_MS = 90_000;

export function objectStoreMountRoutes(
  { workload }: Planes,
  { database, hosts }: { database: Database; hosts: HostClient },
): void {
  /** @returns what the host answers. @throws 409 with its reason, 502 */
  async function ask(
    host: HostOfSandbox,
    shown: string,
    what: 'mount' | 'unmount',
    body: GuestStore | { path: string },
  ): Promise<unknown> {
    const { id, runner_id: runnerId, data_url: dataUrl } = host;
    if (runnerId === null || dataUrl === null) throw notRunning(shown, host);
    const { refused, answer } = await hosts.post({
      runnerId,
      dataUrl,
      path: `/vms/${id}/stores/${what}`,
      subject: id,
      shown,
      body,
      deadlineMs: HOST_MS,
    });
    if (refused !== undefined) throw conflict(`${shown} rejected the ${what}: ${refused}`, 'mount_rejected');
    return answer;
  }

  workload.operation(operations.mountObjectStore, async ({ params, body, principal }) => {
    const path = checkMountPath(body.mount_path, 'mount_path');
    const host = await hostOf(database, params.id, principal.projectId);
    const shown = `sandbox ${quote(params.id)}`;
    if (host.status === 'running' && host.capabilities?.includes(OBJECT_STORES_CAPABILITY) !== true)
      throw conflict(
        `the host of ${shown} cannot mount object stores yet: ${MADE_AFTER_START}`,
        'no_capacity',
      );
    const mount = await resolveMount(database.pool, principal.projectId, {
      object_store: body.object_store,
      mount_path: path,
      read_only: body.read_only ?? null,
    });
    const isNew = await database.transaction((on) =>
      addMount(on, host.id, mount, () => notRunning(shown, host)),
    );
    try {
      const stores = await guestStores(database.pool, [host.id]);
      const store = stores.get(host.id)?.find((one) => one.path === path);
      if (store === undefined)
        throw conflict(`${shown} rejected the mount: it was unmounted meanwhile`, 'concurrent_change');
      const answer = await ask(host, shown, 'mount', store);
      if (!isNew && (answer as Partial<StoreMounted> | undefined)?.existed !== false) throw pathTaken(path);
    } catch (error) {
      // Of another request, which may still be on its way.
      if (!isNew) throw error;
      // It may be mounted all the same, where the answer was lost.
      if (!isRefusal(error)) await ask(host, shown, 'unmount', { path }).catch(() => undefined);
      await removeMount(database.pool, host.id, path);
      throw error;
    }
    const written = (await listMounts(database.pool, host.id)).find((one) => one.mount_path === path);
    if (written === undefined)
      throw conflict(`${shown} has been deleted, or the store was unmounted meanwhile`, 'concurrent_change');
    return written;
  });

  workload.operation(operations.listObjectStoreMounts, async ({ params, principal }) => {
    const { id } = await hostOf(database, params.id, principal.projectId);
    return { object_store_mounts: await listMounts(database.pool, id) };
  });

  workload.operation(operations.unmountObjectStore, async ({ params, principal }) => {
    const host = await hostOf(database, params.id, principal.projectId);
    const shown = `sandbox ${quote(params.id)}`;
    if (host.status !== 'running') throw notRunning(shown, host);
    const mounts = (await listMounts(database.pool, host.id)).filter(
      ({ object_store, object_store_id }) =>
        object_store === params.name || object_store_id === params.name.toLowerCase(),
    );
    const [first] = mounts;
    if (first === undefined)
      throw notFound(`${shown} has no object store ${quote(params.name)} mounted`, 'mount_not_found');
    for (const { mount_path: path } of mounts) {
      await ask(host, shown, 'unmount', { path });
      await removeMount(database.pool, host.id, path);
    }
    return { object_store: first.object_store, mount_paths: mounts.map(({ mount_path }) => mount_path) };
  });
}

const notRunning = (shown: string, { status }: HostOfSandbox): Error =>
  conflict(
    `${shown} is ${status}: stores are mounted and unmounted while it is running`,
    'sandbox_not_running',
  );

const isRefusal = (error: unknown): boolean => (error as { status?: number }).status === 409;
