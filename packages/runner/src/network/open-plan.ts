/** The addresses of the service: chosen once, and saved. */
import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Cidr, contains, formatCidr, overlaps, parseCidr } from '@releap/contract/netd';
import type { HostdService } from '../host/hostd-service.ts';
import {
  type AddressPlan,
  BLOCK_BITS,
  bridgeName,
  chooseBlock,
  DEFAULT_RANGE,
  DEFAULT_UID_BASE,
  indexInName,
  makeAddressPlan,
  netnsPrefix,
  parseRange,
  serviceTag,
  vethPrefix,
} from './address-plan.ts';
import { removeBridge } from './bridge.ts';
import { listHostAddresses, listLinks, listNetns, listUsedPrefixes } from './host-state.ts';
import type { NetworkOptions } from './network-options.ts';
import { removePolicyRouting } from './policy-routing.ts';
import { destroySlots } from './slot.ts';
import type { SlotStore } from './slot-store.ts';

const DEFAULT_SLOTS = 256;

/**
 * The block is chosen once and kept, as long as nothing else on the machine has come to use it. When it has to
 * change, slots with old addresses are of no use and go.
 */
export async function openPlan(
  options: Pick<NetworkOptions, 'dir' | 'identity' | 'log' | 'range' | 'slots' | 'uidBase'>,
  store: SlotStore,
  hostd: HostdService,
): Promise<AddressPlan> {
  const { log, range = DEFAULT_RANGE } = options;
  const within = parseRange(range);
  const tag = serviceTag(options.identity);
  const path = join(options.dir, 'block');
  const own = (name: string) => name === bridgeName(tag) || name.startsWith(vethPrefix(tag));
  const used = await listUsedPrefixes(own);
  const hostAddresses = await listHostAddresses(own);
  const planOf = (block: Cidr): AddressPlan => ({
    ...makeAddressPlan(tag, block, options.slots ?? DEFAULT_SLOTS, options.uidBase ?? DEFAULT_UID_BASE),
    hostAddresses,
  });

  const saved = parseCidr((await readFile(path, 'utf8').catch(() => '')).trim());
  const links = await listLinks();
  if (saved !== undefined && saved.bits === BLOCK_BITS && contains(within, saved)) {
    const rival = used.find((other) => overlaps(saved, other));
    if (rival === undefined) return planOf(saved);
    if (links.includes(bridgeName(tag))) {
      log.warn(
        { block: formatCidr(saved), other: formatCidr(rival) },
        'our addresses are also routed elsewhere',
      );
      return planOf(saved);
    }
    log.warn(
      { block: formatCidr(saved), other: formatCidr(rival) },
      'our addresses are taken; choosing others',
    );
  }
  if (saved !== undefined && saved.bits === BLOCK_BITS) await removePolicyRouting(planOf(saved));
  const plan = planOf(chooseBlock(tag, range, used));
  await removeAllSlots(hostd, plan, links);
  await store.clear();
  await writeFile(`${path}.new`, `${formatCidr(plan.block)}\n`, { mode: 0o600 });
  await rename(`${path}.new`, path);
  return plan;
}

async function removeAllSlots(
  hostd: HostdService,
  plan: AddressPlan,
  links: readonly string[],
): Promise<void> {
  const indexes = [
    ...links.map((name) => indexInName(vethPrefix(plan.tag), name)),
    ...(await listNetns()).map((name) => indexInName(netnsPrefix(plan.tag), name)),
  ].filter((index) => index !== undefined);
  await destroySlots(hostd, plan, [...new Set(indexes)]);
  await removeBridge(plan);
}
