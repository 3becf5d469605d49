/** The bridge that has the service's address. */
import { run } from '../process/index.ts';
import { type AddressPlan, BLOCK_BITS } from './address-plan.ts';
import { listLinks } from './host-state.ts';

/** A bridge without ports: it holds our address, and its route shows every other program that the block is taken. */
export async function raiseBridge(plan: AddressPlan): Promise<void> {
  if (!(await listLinks()).includes(plan.bridge)) {
    await run('ip', ['link', 'add', 'name', plan.bridge, 'type', 'bridge']);
  }
  const address = `${plan.serviceAddress}/${BLOCK_BITS}`;
  await run('ip', ['address', 'replace', address, 'dev', plan.bridge]);
  await run('ip', ['link', 'set', 'dev', plan.bridge, 'up']);
}

/** Repeating it does nothing. */
export async function removeBridge({ bridge }: AddressPlan): Promise<void> {
  if ((await listLinks()).includes(bridge)) await run('ip', ['link', 'delete', 'dev', bridge]);
}
