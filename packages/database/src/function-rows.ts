/** Rows of functions and their versions, as `schema.ts` has those of sandboxes. */
import type {
  FunctionActivation,
  FunctionSnapshotKind,
  FunctionTemplateState,
  RootSource,
} from '@releap/contract';
import { everyColumn, type Environment } from './schema.ts';

export interface FunctionRow {
  id: string;
  project_id: string;
  name: string;
  /** Where its instances run. */
  region: string;
  /** The newest version number. */
  latest_version: number;
  /** Null until the image of a version is built. */
  current_version: number | null;
  /** Whether its public endpoint is enabled. */
  public: boolean;
  /** Digest of the token of its public endpoint; null when it needs none. */
  token_hash: Buffer | null;
  /** Grows with every change that gateways must see. A bigint, which the driver gives as text. */
  revision: string;
  created_at: Date;
  updated_at: Date;
}

export const FUNCTION_COLUMNS = everyColumn<FunctionRow>()([
  'id',
  'project_id',
  'name',
  'region',
  'latest_version',
  'current_version',
  'public',
  'token_hash',
  'revision',
  'created_at',
  'updated_at',
]);

/** Immutable, except for its four bounds (`timeout_s` and those after it), its state, and the root that its build makes. */
export interface FunctionVersionRow {
  id: string;
  function_id: string;
  project_id: string;
  version: number;
  /** The requested image. */
  image_ref: string;
  /** Null while its image is built. */
  root: RootSource | null;
  /** Empty: the entrypoint and command of the image. */
  handler: string[];
  port: number;
  vcpus: number;
  mem_mib: number;
  scratch_mib: number;
  /** Without `RLP_FN_PORT`. */
  env: Environment;
  snapshot_kind: FunctionSnapshotKind;
  timeout_s: number;
  scaledown_window_s: number;
  max_concurrency: number;
  max_instances: number | null;
  template_state: FunctionTemplateState;
  template_error: string | null;
  /** When it becomes the current version. */
  activate: FunctionActivation;
  /** The image that was uploaded with it, and the job that builds it. */
  image_id: string | null;
  build_job: string | null;
  created_at: Date;
}

export const FUNCTION_VERSION_COLUMNS = everyColumn<FunctionVersionRow>()([
  'id',
  'function_id',
  'project_id',
  'version',
  'image_ref',
  'root',
  'handler',
  'port',
  'vcpus',
  'mem_mib',
  'scratch_mib',
  'env',
  'snapshot_kind',
  'timeout_s',
  'scaledown_window_s',
  'max_concurrency',
  'max_instances',
  'template_state',
  'template_error',
  'activate',
  'image_id',
  'build_job',
  'created_at',
]);
