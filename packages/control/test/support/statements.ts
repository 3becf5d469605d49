/** All SQL of the control plane, each with the file that defines it. */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { declaredStatements } from '@releap/database';

const SOURCE = path.resolve(import.meta.dirname, '../../src');

export interface DefinedStatement {
  name: string;
  text: string;
  /** Relative to the source folder. */
  file: string;
}

/**
 * Statements whose declaration is observed: also those that are built by helpers such as `WorkTable`, or when a server starts. To be
 * called before any module of the control plane is imported.
 * @returns those that have been declared so far
 */
export function observeStatements(): () => DefinedStatement[] {
  const files = new Map<string, string>();
  const declared = declaredStatements as Map<string, string>;
  const set = declared.set.bind(declared);
  Error.stackTraceLimit = 50;
  declared.set = (name, text) => {
    // The outermost frame in a wing: the helper that it called may be in another folder.
    const frames = (new Error('declared').stack ?? '').matchAll(/control\/src\/([\w-]+\/[^:\s)]+):/g);
    files.set(name, [...frames].at(-1)?.[1] ?? '');
    return set(name, text);
  };
  return () => [...declared].map(([name, text]) => ({ name, text, file: files.get(name) ?? '' }));
}

/** Texts that are given to a connection without a name. @throws for one that is not a literal */
export function directStatements(): DefinedStatement[] {
  const all = globSync('**/*.ts', { cwd: SOURCE }).flatMap((file) => {
    const source = readFileSync(path.join(SOURCE, file), 'utf8');
    return [...source.matchAll(/\.query\b(?:<[^(]*>)?\(\s*(.)/g)].map(({ 0: call, 1: quote = '', index }) => {
      const from = index + call.length;
      const text = source.slice(from, source.indexOf(quote, from));
      return {
        name: `${file}: ${text.replaceAll(/\s+/g, ' ')}`,
        text,
        file,
        isLiteral: /['`]/.test(quote) && !text.includes('${'),
      };
    });
  });
  const queries = all.filter(({ text }) => !/^(drop table|set local) /.test(text));
  const opaque = queries.find(({ isLiteral }) => !isLiteral);
  if (opaque !== undefined) throw new Error(`to be declared with statement(): ${opaque.name}`);
  return queries;
}
