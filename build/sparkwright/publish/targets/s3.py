"""An S3-compatible object store as a target.

Pointers are replaced by conditional writes (``If-Match``, ``If-None-Match``); a store that ignores the
conditions is refused before the first one. Files of more than one part are sent part by part. An upload
that was interrupted is continued: a part that the store has with the MD5 of ours is not sent again. The
object appears when the last part is there, on the condition that there is none.

boto3, and not obstore, since obstore 0.12 can neither continue another process's upload nor complete one
on a condition.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sparkwright.base.digests import sha256_stream
from sparkwright.base.errors import LostRaceError, ToolError, UploadError
from sparkwright.base.events import task
from sparkwright.publish.target import Stored, StoredStat, checked_path
from sparkwright.publish.targets.verified import (
    content_type,
    is_hidden,
    note_path,
    put_verified,
    require_digest,
)
from sparkwright.upstream.network import InterruptedFetch, reason_of, retrying
from sparkwright.upstream.settings import IndexSettings

T = TypeVar("T")

PART = 16 << 20  # bytes; a wheel of 330 MB has 21 parts, and the store allows 10,000
_FOREVER = "public, max-age=31536000, immutable"
_ALWAYS_ASK = "no-cache"
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
_LOST = frozenset(
    {"412", "PreconditionFailed", "409", "ConditionalRequestConflict", "NoSuchUpload", *_ABSENT}
)
_DENIED = frozenset({401, 403})
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_NOT_IMPLEMENTED = "NotImplemented"
_PAGE = "/index.html"
_CONDITIONS = ".conditions"
"""The object on which a store shows that it heeds conditions."""


@dataclass(frozen=True)
class S3Target:
    """A bucket, or a prefix in one; the tag of an object is its ETag.

    Credentials are those of boto3: the environment, ``~/.aws``, or the machine's role.

    Attributes:
        prefix: of every key, without a slash at its end; may be empty.
        endpoint: address of a store that is not Amazon's.
        region: its name; empty for that of the environment.
        profile: section of ``~/.aws/credentials``; empty for that of the environment.
        public: address under which clients read, if it is not that of the bucket.
        settings: time-outs, tries and certificates.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    profile: str = ""
    public: str = ""
    settings: IndexSettings = field(default_factory=IndexSettings, repr=False)

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""

        def read() -> Stored:
            answer = self._client.get_object(**self._object(path))
            return Stored(answer["Body"].read(), answer["ETag"])

        return self._found("reading", path, read)

    def stat(self, path: str) -> StoredStat | None:
        """See `Target.stat`."""
        return self.fingerprint(path)

    def fingerprint(self, path: str) -> StoredStat | None:
        """Return size and ETag of the object at *path*, `None` if there is none."""

        def head() -> StoredStat:
            answer = self._client.head_object(**self._object(path))
            return StoredStat(answer["ContentLength"], answer["ETag"])

        return self._found("reading", path, head)

    def digest(self, path: str) -> str:
        """Return the SHA-256 of the object at *path*, read from the store; a cut transfer starts over."""
        return self._do(
            "reading", path, lambda: sha256_stream(self._client.get_object(**self._object(path))["Body"])
        )

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`; an interrupted upload is continued with its missing parts."""
        put_verified(self, path, file, sha256)

    def upload(self, path: str, file: Path, sha256: str) -> None:
        """Send *file* to *path* on the condition that nothing is there, and read it back."""
        put = self._put_whole if file.stat().st_size <= PART else self._put_parts
        # Where another publisher was first, or the answer to a first try was lost, the digest decides.
        with contextlib.suppress(LostRaceError):
            self._do("writing", path, lambda: put(path, file))
        require_digest(self.url(path), self.digest(path), sha256)

    def overwrite(self, path: str, data: bytes) -> None:
        """Write *data* to *path*, whatever is there."""
        self._do("writing", path, lambda: self._put(path, data, _ALWAYS_ASK))

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        self._require_conditions()
        tag = self._replace(path, data, _condition(expected))
        if path.endswith(_PAGE):
            self._answer_for_folder(path)
        return tag

    def _replace(self, path: str, data: bytes, condition: dict[str, str]) -> str:
        try:
            return str(
                self._do("writing", path, lambda: self._put(path, data, _ALWAYS_ASK, **condition))["ETag"]
            )
        except LostRaceError:
            # The answer to a first try may have been lost.
            if (found := self.read(path)) is not None and found.data == data:
                return found.tag
            raise

    def _answer_for_folder(self, path: str) -> None:
        """Make the object that has the name of the folder of *path*, with its slash, a copy of that page.

        Clients ask an index for folders, and a store knows only objects. The copy is read before the page and
        replaced only if it is still what was read, so that of two publishers the later page stays.
        """
        folder = {"Bucket": self.bucket, "Key": self._key(path).removesuffix(_PAGE.lstrip("/"))}

        def once() -> bool:
            copy = self._found("reading", path, lambda: self._client.head_object(**folder)["ETag"])
            page = self._client.get_object(**self._object(path))
            if page["ETag"] == copy:
                return True
            condition = _condition(copy)
            try:
                self._do("writing", path, lambda: self._client.put_object(
                    **folder, Body=page["Body"].read(), ContentType=content_type(path),
                    CacheControl=_ALWAYS_ASK, **condition,
                ))  # fmt: skip
            except LostRaceError:
                return False
            return True

        if not any(once() for _ in range(self.settings.attempts)):
            raise UploadError(
                f"{path} is not at the address of its folder", because="others kept replacing it"
            )

    def list(self, prefix: str) -> list[str]:
        """See `Target.list`; hidden files are left out."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Target.sizes`."""
        start = self._key(prefix.rstrip("/")) + "/" if prefix else self._key("")
        base = len(self._key(""))

        def found() -> dict[str, int]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start)
            items = (item for page in pages for item in page.get("Contents", ()))
            return {item["Key"][base:]: item["Size"] for item in items}

        listed = self._do("listing", prefix or ".", found)
        return {path: size for path, size in listed.items() if not _is_extra(path)}

    def remove(self, path: str) -> None:
        """See `Target.remove`."""
        for one in (self._object(note_path(path)), self._object(path)):
            self._do("removing", path, functools.partial(self._client.delete_object, **one))

    def url(self, path: str) -> str:
        """See `Target.url`."""
        if self.public:
            return f"{self.public}/{quote(path, safe='/')}"
        key = quote(self._key(path), safe="/")
        if self.endpoint:
            return f"{self.endpoint}/{self.bucket}/{key}"
        return f"https://{self.bucket}.s3.{self._client.meta.region_name}.amazonaws.com/{key}"

    def elsewhere(self, path: str) -> str:
        """See `Target.elsewhere`."""
        del path
        return ""

    # Uploads ---------------------------------------------------------------------------------------------

    def _put(self, path: str, body: Any, cache: str, **condition: str) -> Any:
        return self._client.put_object(
            **self._object(path), Body=body, ContentType=content_type(path), CacheControl=cache, **condition
        )

    def _put_whole(self, path: str, file: Path) -> None:
        with file.open("rb") as stream:
            self._put(path, stream, _FOREVER, IfNoneMatch="*")

    def _put_parts(self, path: str, file: Path) -> None:
        """Send those parts of *file* that no earlier run sent, then complete the object."""
        where = self._object(path)
        sums = [hashlib.md5(part, usedforsecurity=False).digest() for part in _parts(file)]
        upload, sent = self._begun(path, sums)
        size = file.stat().st_size
        with task(f"upload {file.name}", total=size, unit="B", done=len(sent) * PART) as progress:
            for number, part in enumerate(_parts(file), 1):
                if number in sent:
                    continue
                self._client.upload_part(
                    **where, UploadId=upload, PartNumber=number, Body=part,
                    ContentMD5=base64.b64encode(sums[number - 1]).decode(),
                )  # fmt: skip
                sent[number] = f'"{sums[number - 1].hex()}"'
                progress.advance(len(part))
        self._client.complete_multipart_upload(
            **where, UploadId=upload, IfNoneMatch="*",
            MultipartUpload={"Parts": [{"PartNumber": n, "ETag": tag} for n, tag in sorted(sent.items())]},
        )  # fmt: skip

    def _begun(self, path: str, sums: Sequence[bytes]) -> tuple[str, dict[int, str]]:
        """Return an upload to continue, with the ETags of its parts by number; a new one if there is none.

        An upload with a part that is not the file's is another file's, or the store's ETags are not MD5.
        """
        where = self._object(path)
        for upload in self._unfinished(where["Key"]):
            listed = self._client.get_paginator("list_parts").paginate(**where, UploadId=upload)
            tags = {part["PartNumber"]: part["ETag"] for page in listed for part in page.get("Parts", ())}
            if all(n <= len(sums) and tag.strip('"') == sums[n - 1].hex() for n, tag in tags.items()):
                return upload, tags
        begun = self._client.create_multipart_upload(
            **where, ContentType=content_type(path), CacheControl=_FOREVER
        )
        return begun["UploadId"], {}

    def _unfinished(self, key: str) -> tuple[str, ...]:
        """Return the ids of begun uploads of *key*; none where the store lists no uploads."""
        from botocore.exceptions import ClientError

        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=key)
        try:
            uploads = [upload for page in pages for upload in page.get("Uploads", ())]
        except ClientError as error:
            if error.response["Error"]["Code"] != _NOT_IMPLEMENTED:
                raise
            return ()
        return tuple(upload["UploadId"] for upload in uploads if upload["Key"] == key)

    # Conditions, requests and errors ---------------------------------------------------------------------

    def _require_conditions(self) -> None:
        """Refuse a store that would let the later of two publishers win.

        Raises:
            UploadError: it ignores ``If-None-Match`` or ``If-Match`` on writes.
        """
        if not self._has_conditions:
            raise UploadError(
                f"nothing was published to {self._shown}",
                because="the store ignores If-Match or If-None-Match, by which one of two publishers wins",
                next_step="use a store with conditional writes, such as Amazon S3",
            )

    @functools.cached_property
    def _has_conditions(self) -> bool:
        absent, other = {"IfNoneMatch": "*"}, {"IfMatch": f'"{"0" * 32}"'}
        # The first write makes the object where it is missing, so the second has to be refused.
        return (self._refuses(absent) or self._refuses(absent)) and self._refuses(other)

    def _refuses(self, condition: dict[str, str]) -> bool:
        try:
            self._do("writing", _CONDITIONS, lambda: self._put(_CONDITIONS, b"", _ALWAYS_ASK, **condition))
        except LostRaceError:
            return True
        return False

    def _found(self, what: str, path: str, call: Callable[[], T]) -> T | None:
        """Return the result of *call*, `None` if there is no object at *path*."""
        self._require_boto()
        from botocore.exceptions import ClientError

        def present() -> T | None:
            try:
                return call()
            except ClientError as error:
                if error.response["Error"]["Code"] in _ABSENT:
                    return None
                raise

        return self._do(what, path, present)

    def _do(self, what: str, path: str, call: Callable[[], T]) -> T:
        """Return the result of *call*; botocore repeats requests, and a body that is cut off is read again.

        Raises:
            LostRaceError: a condition does not hold.
            UploadError: the store cannot be reached, is too slow, or refuses.
        """
        self._require_boto()
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            IncompleteReadError,
            ResponseStreamingError,
        )

        def once() -> T:
            try:
                return call()
            except (IncompleteReadError, ResponseStreamingError) as error:
                raise InterruptedFetch(str(error)) from error

        try:
            return retrying(self.settings, f"{what} {path}")(once)
        except ClientError as error:
            # The message is left out: it can quote the request.
            code = error.response["Error"]["Code"]
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in _LOST:
                raise LostRaceError(
                    f"{path} was not replaced",
                    because=f"another publisher wrote it first, to {self._shown}",
                    next_step="run the same command again: it starts from what the other one published",
                ) from error
            raise self._failed(
                what, path, f"the store answered {status} {code}", denied=status in _DENIED
            ) from error
        except (BotoCoreError, InterruptedFetch, OSError) as error:
            raise self._failed(
                what, path, reason_of(error), denied=type(error).__name__ in _NO_CREDENTIALS
            ) from error

    def _failed(self, what: str, path: str, because: str, *, denied: bool) -> UploadError:
        step = "check the address and the network; the same command resumes"
        if denied:
            step = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the bucket's policy"
        return UploadError(f"{what} {path} at {self._shown} failed", because=because, next_step=step)

    @property
    def _shown(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/") + (
            f" ({self.endpoint})" if self.endpoint else ""
        )

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _object(self, path: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._key(checked_path(path))}

    def _require_boto(self) -> None:
        """Refuse to go on without boto3.

        Raises:
            ToolError: it is not installed.
        """
        try:
            import boto3  # noqa: F401 - its exceptions are imported next
        except ImportError as error:
            raise ToolError(
                f"{self._shown} cannot be used", because="boto3 is not installed",
                next_step="pip install 'sparkwright[publish]', in a checkout -e '.[publish]'",
            ) from error  # fmt: skip

    @functools.cached_property
    def _client(self) -> Any:
        self._require_boto()
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        try:
            session = boto3.Session(profile_name=self.profile or None, region_name=self.region or None)
            return session.client(
                "s3",
                endpoint_url=self.endpoint or None,
                region_name=session.region_name or "us-east-1",
                verify=self.settings.cert or None,
                config=Config(
                    connect_timeout=self.settings.timeout_s,
                    read_timeout=self.settings.timeout_s,
                    retries={"mode": "standard", "total_max_attempts": self.settings.attempts},
                    # Not every compatible store takes the newer checksums; parts have an MD5.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    s3={"addressing_style": "path"} if self.endpoint else None,
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise UploadError(f"{self._shown} cannot be used", because=str(error)) from error


def _condition(expected: str | None) -> dict[str, str]:
    """Return the condition under which an object with the ETag *expected* is replaced."""
    return {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}


def _is_extra(path: str) -> bool:
    """Return if *path* is hidden, or a folder's copy of its page."""
    return is_hidden(path) or path.endswith("/")


def _parts(file: Path) -> Iterator[bytes]:
    """Yield the content of *file* in pieces of `PART` bytes."""
    with file.open("rb") as stream:
        while part := stream.read(PART):
            yield part
