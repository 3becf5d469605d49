import type { ObjectStoreUnmountResponse } from '@releap/contract/wire';
import { ReleapError } from './error.ts';
import type { Service } from './service.ts';

/** Of a mount and an unmount: longer than the service waits for the host, which waits for the guest. */
export const MOUNT_ANSWER_MS = 100_000;

/** What the guest says of files that wait for their upload. Any other refusal is of a mount with which nothing is left to do. */
const NOT_UPLOADED = /are not uploaded yet/;

/**
 * Unmounts the object stores that a sandbox may write to, so that all that its programs have closed is in their buckets.
 * @throws when something is not uploaded within `deadlineMs`; it is tried once at least
 */
export async function unmountStores(
  service: Pick<Service, 'api' | 'patient'>,
  id: string,
  deadlineMs: number,
): Promise<void> {
  const end = performance.now() + deadlineMs;
  const { object_store_mounts: mounts } = await service.api.listObjectStoreMounts({ params: { id } });
  const names = new Set(mounts.filter((one) => !one.read_only).map((one) => one.object_store));
  await Promise.all(
    [...names].map(async (name) => {
      for (;;) {
        try {
          return await unmountStore(service, id, name);
        } catch (error) {
          if (!(error instanceof ReleapError)) throw error;
          if (!NOT_UPLOADED.test(error.message)) return undefined;
          if (performance.now() >= end) throw error;
        }
      }
    }),
  );
}

export function unmountStore(
  { patient }: Pick<Service, 'patient'>,
  id: string,
  name: string,
): Promise<ObjectStoreUnmountResponse> {
  return patient.unmountObjectStore({ params: { id, name } }, { timeoutMs: MOUNT_ANSWER_MS });
}
