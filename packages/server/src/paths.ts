import path from 'node:path';

/** What set-up has built for this checkout: kernel, guest agent, packages. */
export const BUILD_DIR = path.resolve(import.meta.dirname, '../../../build');

/** The program that every process of the service runs. */
export const PROGRAM = path.join(import.meta.dirname, 'main.ts');
