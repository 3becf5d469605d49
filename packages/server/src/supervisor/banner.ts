import { styleText } from 'node:util';
import { type Config, urlHost } from '../config/config.ts';
import { hasSources } from '../paths.ts';

export interface ReadyFacts {
  seconds: number;
  apiUrl: string;
  toolboxUrl: string;
  /** Command of an SSH client, for a sandbox's id. */
  ssh: string;
  /** Form of preview URLs, if ports can be exposed. */
  previews?: string;
  issuer: string;
  database: string;
  accelerator: string;
  vmm: string;
}

/** Printed after a start: addresses, and commands to try. */
export function readyBanner(config: Config, facts: ReadyFacts, color: boolean): string {
  const paint = (style: Parameters<typeof styleText>[0], text: string): string =>
    color ? styleText(style, text, { validateStream: false }) : text;
  const emulated = facts.accelerator === 'tcg' ? ' (emulated: no working hardware virtualisation)' : '';
  const home = config.home === '/var/lib/releap' ? '' : `RELEAP_HOME=${config.home} `;
  // A package has no sources, and its rlp is in the PATH.
  const rlp = hasSources() ? 'npx rlp' : 'rlp';
  const image = config.builtinImages[0] ?? 'IMAGE';
  const rows: [string, string][] = [
    ['API', `${facts.apiUrl}   (${facts.apiUrl}/openapi.json)`],
    ['Toolbox', facts.toolboxUrl],
    ['SSH', facts.ssh],
    ...(facts.previews === undefined ? [] : [['Previews', facts.previews] satisfies [string, string]]),
    ['Sign in', facts.issuer],
    ['Key', `${config.home}/bootstrap.json`],
    ['Machine', `${facts.vmm}, ${facts.accelerator}${emulated}, ${facts.database}`],
    ['Logs', `${config.home}/log`],
  ];
  return [
    '',
    `  ${paint('bold', 'Releap is ready')} after ${facts.seconds.toFixed(1)} s. Ctrl-C stops it.`,
    '',
    ...rows.map(([name, value]) => `  ${paint('dim', name.padEnd(8))} ${value}`),
    '',
    `  ${paint('dim', 'Try')}      ${paint('cyan', `${home}${rlp} run ${image} -- uname -a`)}`,
    '',
  ].join('\n');
}

/** Where callers on this machine reach a port. */
export function localUrl(host: string, port: number): string {
  return `http://${urlHost(host)}:${port}`;
}
