import { conflict, GuestStore, type StoreMounted } from '@releap/contract';
import type { FastifyInstance } from 'fastify';
import { type Static, Type } from 'typebox';
import { type GuestClient, GuestError, type GuestProgram } from '../guest/index.ts';
import { storeMount } from '../reconcile/guest-config.ts';

const Unmount = Type.Object({ path: Type.String({ minLength: 1, maxLength: 1024 }) });
/** The guest gets the program that serves mounts, and waits for uploads before it unmounts. */
const MOUNT_MS = 60_000;
const UNMOUNT_MS = 75_000;

export interface StoreRoutes {
  /** The agent of a sandbox that runs here; undefined when it does not. */
  guest: (vmId: string) => Promise<GuestClient> | undefined;
  /** Resolves with whether the proxy has the sandbox's stores, as control knows them now. */
  serve: (vmId: string) => Promise<boolean>;
  /** @throws when the host does not have it yet */
  program: () => Promise<GuestProgram>;
}

/** `POST /vms/:id/stores/mount` and `…/unmount`, from control, which has recorded the mount. 409 with what the guest says. */
export function registerStores(app: FastifyInstance, { guest, serve, program }: StoreRoutes): void {
  async function ask<T>(vmId: string, work: (guest: GuestClient) => Promise<T>): Promise<T> {
    try {
      const found = await guest(vmId);
      if (found === undefined) throw conflict('it does not run on this host');
      return await work(found);
    } catch (error) {
      if (!(error instanceof GuestError)) throw error;
      throw conflict(error.message);
    }
  }
  app.post<{ Params: { id: string }; Body: Static<typeof GuestStore> }>(
    '/vms/:id/stores/mount',
    { schema: { body: GuestStore } },
    async ({ params: { id }, body }): Promise<StoreMounted> =>
      await ask(id, async (found) => {
        if (!(await serve(id))) throw conflict('its host does not know the object store yet: try again');
        const toSend = await program().catch((error: unknown) => {
          throw conflict((error as Error).message);
        });
        return { existed: await found.mountStore(storeMount(body), toSend, { deadlineMs: MOUNT_MS }) };
      }),
  );
  app.post<{ Params: { id: string }; Body: Static<typeof Unmount> }>(
    '/vms/:id/stores/unmount',
    { schema: { body: Unmount } },
    async ({ params: { id }, body }) =>
      await ask(id, async (found) => {
        await found.unmountStore(body.path, { deadlineMs: UNMOUNT_MS });
        return {};
      }),
  );
}
