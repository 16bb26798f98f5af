"""A node for tests that answers about jobs as it is told to, on bare paho; it runs nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from bench.echo_nodes import VERSION, Message, answer_to, now_utc
from tests.support.echo_node import EchoNode

PLAN = "0" * 64


def json_parcel(values: Any, **changes: Any) -> Message:
    """Return a parcel of JSON values, as an honest node makes it."""
    text = json.dumps(values)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"format": "json", "sha256": digest, "size_bytes": len(text.encode()), "json": text} | changes


def npz_parcel(content: bytes, **changes: Any) -> Message:
    """Return a parcel that holds a file."""
    digest = hashlib.sha256(content).hexdigest()
    text = base64.b64encode(content).decode()
    return {"format": "npz", "sha256": digest, "size_bytes": len(content), "base64": text} | changes


class RunningNode(EchoNode):
    """Accepts every run, and goes on with it when the test says so.

    ``jobs`` are what it says of each, ``reports`` the scalars that it keeps, ``results`` what they returned,
    ``began`` the state of one that begins.
    """

    def __init__(self, port: int, node_id: str, **options: Any) -> None:
        super().__init__(port, node_id, **options)
        self.jobs: dict[str, Message] = {}
        self.reports: dict[str, list[Message]] = {}
        self.results: dict[str, Message] = {}
        self.printed: str | None = None
        self.page = 500
        self.began = "running"

    def honest(self, request: Message) -> Message | None:
        """Return what a node answers that keeps its jobs well."""
        match request["command"]:
            case "run":
                job = self.jobs.setdefault(request["job_id"], self._job(request))
                return self.reply(request, "run", success=True, job=job)
            case "stop":
                return self.reply(request, "stop", success=True, job=self.jobs[request["job_id"]])
            case "job-status":
                return self.reply(request, "job-status", success=True, **self._status(request))
        return answer_to(self.node_id, self.boot, request)

    def _job(self, request: Message) -> Message:
        self.reports.setdefault(request["job_id"], [])
        return {
            "job_id": request["job_id"],
            "state": self.began,
            "sha256": request["sha256"],
            "name": "plan",
            "label": request.get("label", ""),
            "group": request.get("group", ""),
            "dataset_id": request.get("dataset_id"),
            "sandbox": "bubblewrap",
            "created": now_utc(),
            "scalars": 0,
        }

    def _status(self, request: Message) -> Message:
        job_id = request["job_id"]
        jobs = list(self.jobs.values())
        if job_id is None:
            page = jobs[request["offset"] : request["offset"] + self.page]
            after = request["offset"] + len(page)
            return {"jobs": page, "count": len(jobs), "next_offset": after if after < len(jobs) else None}
        answer: Message = {"jobs": [job for job in jobs if job["job_id"] == job_id], "count": 1}
        if (first := request.get("scalars_from")) is not None:
            reports = self.reports.get(job_id, [])
            answer["scalars"] = [one for one in reports if one["number"] >= first][: self.page]
        if request.get("result"):
            answer["result"] = self.results.get(job_id)
        for stream in ("stdout", "stderr"):
            if (offset := request.get(f"{stream}_from")) is not None:
                answer |= self._trace(stream, offset)
        return answer

    def _trace(self, stream: str, offset: int) -> Message:
        if self.printed is None:
            return {"withheld": "the owner lets nothing leave that plans print (job_output in [policy])"}
        piece = self.printed[offset : offset + self.page]
        trace = {"offset": offset, "text": piece, "next_offset": offset + len(piece), "size_bytes": len(self.printed)}
        return {stream: trace}

    def report(self, job_id: str, *, live: bool = True, **values: float) -> None:
        """Keep a scalar, and send it unless it is to be lost."""
        number = len(self.reports[job_id])
        self.reports[job_id].append({"number": number, "t": 1.0 + number, "values": values, "step": number})
        self.jobs[job_id]["scalars"] = number + 1
        if live:
            self.stream(job_id, number, values, step=number)

    def stream(self, job_id: str, number: int, values: dict[str, float], *, step: int = 0) -> None:
        """Send a scalar as it comes live."""
        scalar = {"job_id": job_id, "number": number, "t": 1.0 + step, "mono": 1.0, "values": values, "step": step}
        message = {
            "command": "run-scalars",
            "protocol_version": VERSION,
            "node_id": self.node_id,
            "researcher_id": "alice",
            "boot": self.boot,
            "scalars": [scalar],
        }
        self.publish(f"general/researcher/alice/all/{self.node_id}", message)

    def end(self, job_id: str, state: str = "succeeded", *, told: bool = True, result: Any = None, **job: Any) -> None:
        """End a job; its outcome is sent unless it is to be lost."""
        self.jobs[job_id] |= {"state": state, "ended": now_utc()} | job
        if result is not None:
            self.results[job_id] = result
        if told:
            self.announce(job_id)

    def announce(self, job_id: str, **changes: Any) -> None:
        """Send an outcome, of a job that may not even be one of ours."""
        is_held = self.jobs.get(job_id, {}).get("state") == "held"
        message = {
            "command": "job-outcome",
            "protocol_version": VERSION,
            "node_id": self.node_id,
            "researcher_id": "alice",
            "id": f"job-{job_id}-held" if is_held else f"job-{job_id}",
            "boot": self.boot,
            "job": self.jobs.get(job_id),
            "result": self.results.get(job_id),
        } | changes
        self.publish(f"general/researcher/alice/all/{self.node_id}", message)
