export { runCli } from './run-cli.ts';
export type { Context, GlobalOptions, Terminal } from './terminal.ts';
