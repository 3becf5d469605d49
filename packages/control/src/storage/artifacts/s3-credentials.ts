import { readFile } from 'node:fs/promises';

/** Keys of an S3 service, or the file that has them. */
export type S3CredentialSource =
  | { accessKeyId: string; secretAccessKey: string }
  /** JSON: `{"access_key_id": …, "secret_access_key": …, "session_token"?: …}`. Read again every few minutes. */
  | { file: string };

export interface S3Credentials {
  accessKeyId: string;
  secretAccessKey: string;
  sessionToken?: string;
  expiration?: Date;
}

/** A file may be replaced by one with newer keys. The SDK asks again five minutes before the expiration. */
const VALID_MS = 10 * 60_000;

/** @throws with the reason, never with a value of the file */
export async function readS3Credentials(source: S3CredentialSource): Promise<S3Credentials> {
  if (!('file' in source)) return source;
  const text = await readFile(source.file, 'utf8');
  let content: Partial<Record<string, unknown>>;
  try {
    content = JSON.parse(text) as typeof content;
  } catch {
    throw new Error(`${source.file} must hold a JSON object`);
  }
  const value = (name: string): string => {
    const found = content[name];
    if (typeof found !== 'string' || found === '') throw new Error(`${source.file} lacks ${name}`);
    return found;
  };
  return {
    accessKeyId: value('access_key_id'),
    secretAccessKey: value('secret_access_key'),
    ...(content['session_token'] === undefined ? {} : { sessionToken: value('session_token') }),
    expiration: new Date(Date.now() + VALID_MS),
  };
}
