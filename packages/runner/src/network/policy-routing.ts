/**
 * How packets that the firewall has marked reach the egress proxy although they are for other addresses (TPROXY): a routing table
 * of the service's own in which every address is local, and a rule that leads marked packets to it.
 */
import { parseCidr } from '@releap/contract/netd';
import { run } from '../process/index.ts';
import {
  type AddressPlan,
  BLOCK_BITS,
  blockNumber,
  isBridgeName,
  redirectMark,
  redirectTable,
} from './address-plan.ts';

/** Before the rules of the main table (32766), after those of most other software. */
const PRIORITY = '32000';

interface RuleRow {
  fwmark?: string;
  table?: string;
}

interface AddressRow {
  ifname: string;
  addr_info?: { local?: string }[];
}

/** Repeating it changes nothing. */
export async function raisePolicyRouting({ block }: AddressPlan): Promise<void> {
  const number = blockNumber(block);
  await run('ip', [
    'route',
    'replace',
    'local',
    'default',
    'dev',
    'lo',
    'table',
    String(redirectTable(number)),
  ]);
  if (!(await listRules()).some((rule) => numberOf(rule)[0] === number))
    await run('ip', ['rule', 'add', ...ruleOf(number), 'priority', PRIORITY]);
  await removeOrphans();
}

/** Removes what is there of it. */
export async function removePolicyRouting({ block }: AddressPlan): Promise<void> {
  await removeRouting(blockNumber(block));
}

/**
 * Removes what services leave that are killed and whose other parts are removed then: a service that runs has a bridge with an
 * address of its block, from before it raises its rule until after it has removed it.
 */
async function removeOrphans(): Promise<void> {
  const [rules, bridges] = await Promise.all([listRules(), listBridges()]);
  const used = new Set(bridges);
  for (const number of new Set(rules.flatMap(numberOf))) if (!used.has(number)) await removeRouting(number);
}

async function removeRouting(number: number): Promise<void> {
  while ((await listRules()).some((rule) => numberOf(rule)[0] === number))
    await run('ip', ['rule', 'delete', ...ruleOf(number)]);
  const table = String(redirectTable(number));
  const routes = JSON.parse(await run('ip', ['-j', 'route', 'show', 'table', 'all'])) as RuleRow[];
  if (routes.some((route) => route.table === table)) await run('ip', ['route', 'flush', 'table', table]);
}

async function listRules(): Promise<RuleRow[]> {
  return JSON.parse(await run('ip', ['-j', 'rule', 'show'])) as RuleRow[];
}

/** Numbers of the blocks of services that run on this machine. */
async function listBridges(): Promise<number[]> {
  const rows = JSON.parse(await run('ip', ['-j', '-4', 'address', 'show'])) as AddressRow[];
  return rows
    .filter(({ ifname }) => isBridgeName(ifname))
    .flatMap(({ addr_info: addresses = [] }) => addresses)
    .flatMap(({ local }) => parseCidr(`${local ?? ''}/${BLOCK_BITS}`) ?? [])
    .map(blockNumber);
}

/** The number of the block of a rule of ours; none of other rules. */
function numberOf({ fwmark, table }: RuleRow): number[] {
  const number = Number(fwmark) - redirectMark(0);
  return table === String(redirectTable(number)) ? [number] : [];
}

function ruleOf(number: number): string[] {
  return ['fwmark', String(redirectMark(number)), 'lookup', String(redirectTable(number))];
}
