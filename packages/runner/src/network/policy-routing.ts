/**
 * How packets that the firewall has marked reach the egress proxy although they are for other addresses (TPROXY): a routing table
 * of the service's own in which every address is local, and a rule that leads marked packets to it.
 */
import { run } from '../process/index.ts';
import { type AddressPlan, redirectMark, redirectTable } from './address-plan.ts';

/** Before the rules of the main table (32766), after those of most other software. */
const PRIORITY = '32000';

interface RuleRow {
  fwmark?: string;
  table?: string;
}

/** Repeating it changes nothing. */
export async function raisePolicyRouting(plan: AddressPlan): Promise<void> {
  await run('ip', [
    'route',
    'replace',
    'local',
    'default',
    'dev',
    'lo',
    'table',
    String(redirectTable(plan)),
  ]);
  if (!(await hasRule(plan))) await run('ip', ['rule', 'add', ...ruleOf(plan), 'priority', PRIORITY]);
}

/** Removes what is there of it. */
export async function removePolicyRouting(plan: AddressPlan): Promise<void> {
  while (await hasRule(plan)) await run('ip', ['rule', 'delete', ...ruleOf(plan)]);
  const table = String(redirectTable(plan));
  const routes = JSON.parse(await run('ip', ['-j', 'route', 'show', 'table', 'all'])) as RuleRow[];
  if (routes.some((route) => route.table === table)) await run('ip', ['route', 'flush', 'table', table]);
}

async function hasRule(plan: AddressPlan): Promise<boolean> {
  const rules = JSON.parse(await run('ip', ['-j', 'rule', 'show'])) as RuleRow[];
  const [mark, table] = [redirectMark(plan), String(redirectTable(plan))];
  return rules.some((rule) => Number(rule.fwmark) === mark && rule.table === table);
}

function ruleOf(plan: AddressPlan): string[] {
  return ['fwmark', String(redirectMark(plan)), 'lookup', String(redirectTable(plan))];
}
